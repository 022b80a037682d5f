"""Folders of the repository, wherever a test lies."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
"""What tests share, and the programs that they start."""
TESTS = SUPPORT.parent
ROOT = TESTS.parent
