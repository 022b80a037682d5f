"""``farandole.run``: a function on many workers."""
