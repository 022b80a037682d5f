"""Folders of a live view served through a notebook's kernel, and the config of its monitor.

    folder = own_folder(job)                            # deleted together with the job
    link_file = folder_of_sockets(job, folder) / "live.link"
    config = monitor_config("train", record, link_file, is_optional=True)

Its page has no port: it is served on a Unix socket, for this process only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import weakref
from pathlib import Path

import msgspec

from farandole.control.monitor_messages import UNIX, MonitorConfig


def own_folder(owner: object, place: str | None = None) -> Path:
    """Make a folder that is deleted together with ``owner``."""
    folder = tempfile.mkdtemp(prefix="farandole-", dir=place)
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def folder_of_sockets(owner: object, folder: Path) -> Path:
    """Folder for the socket of a view: its path must be short, and some file systems have no sockets."""
    if not _has_sockets(folder):
        with contextlib.suppress(OSError):
            return own_folder(owner, "/tmp")  # noqa: S108 (it gets a private folder)
    return folder


def monitor_config(name: str, record: Path, link_file: Path | None, is_optional: bool) -> MonitorConfig:
    """Config of a monitor; with a ``link_file`` it serves a page."""
    config = MonitorConfig(str(record), [name], is_quiet=True, is_optional=is_optional)
    if link_file is None:
        return config
    listen = f"{UNIX}{link_file.with_name('live')}"
    return msgspec.structs.replace(config, live=True, listen=listen, link_file=str(link_file))


def _has_sockets(folder: Path) -> bool:
    path = folder / "live"
    with socket.socket(socket.AF_UNIX) as tried:
        try:
            tried.bind(os.fspath(path))
            path.unlink()
        except OSError:
            return False
        return True
