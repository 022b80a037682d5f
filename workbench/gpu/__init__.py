"""Checks for a machine with a GPU, prepared on one without: ``make gpu-wheels`` here, ``make gpu`` there."""
