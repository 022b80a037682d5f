"""Helpers that scripts and tests import."""
