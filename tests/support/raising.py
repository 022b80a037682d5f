"""Errors of ours, as they are or as a framework tells of them out of a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from farandole.graphs.library import original


@contextlib.contextmanager
def raises(kind: type[BaseException], text: str) -> Iterator[None]:
    """Fail unless the block raises our error of that kind, in a framework's words or not."""
    found = None
    try:
        yield
    except Exception as error:
        found = original(error)
    assert isinstance(found, kind), repr(found)
    assert text in str(found), found
