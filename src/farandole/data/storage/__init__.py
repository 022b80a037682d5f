"""Bytes of data sets: where files lie, what lies in them, and how they are cut into pieces."""
