"""``farandole.run``: call a function on many workers."""
