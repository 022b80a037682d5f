"""``store_for``: choice of the store that reads files, by their paths."""

from __future__ import annotations

from farandole.data.storage.byte_store import ByteStore, Listed, SharedFiles
from farandole.data.storage.url_files import UrlFiles


def store_for(path: str, listed: Listed | None = None) -> ByteStore:
    """The store for paths like this one: ``SharedFiles`` that are as ``listed``, or ``UrlFiles`` for a URL."""
    return UrlFiles() if "://" in path else SharedFiles(listed)
