"""Stands for ``torch._dynamo`` where nothing is compiled: what eager code asks of it, and whatever else fails."""

from __future__ import annotations

from typing import Any


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True) -> Any:
    """Return a function that must not be compiled, or a decorator of such."""
    return fn if fn is not None else lambda function: function


def graph_break() -> None:
    """End what would be compiled together."""
