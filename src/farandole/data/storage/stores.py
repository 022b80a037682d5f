"""``store_for``: choice of the store that reads files, by their paths."""

from __future__ import annotations

from farandole.data.storage.byte_store import ByteStore, SharedFiles
from farandole.data.storage.url_files import UrlFiles


def store_for(path: str) -> ByteStore:
    """The store for paths like this one: ``SharedFiles``, or ``UrlFiles`` for a URL."""
    return UrlFiles() if "://" in path else SharedFiles()
