"""Readers of files as scientists have them: each module lists the files of one format, and returns a ``Source``."""
