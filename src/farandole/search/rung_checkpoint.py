"""Checkpoint of a trial at a rung: one file, whole or not there.

    write_checkpoint(folder, epoch=3, value=0.25, content=state.state_dict())
    read_reported(folder)                                   # (3, 0.25), or None
    read_checkpoint(folder)                                 # (3, {...}), or None

The file is a head, a digest and a pickle: its folder is the user's own, and nobody else's file gets there. A file that
is not whole is taken for none, which costs the trial its epochs and no more. It is written before the search hears of
the epoch, so it has the value as well: a search that was killed in between learns it from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import cloudpickle

from farandole.events import logger

NAME = "rung.checkpoint"
_DIGEST_BYTES = 16
_HEAD, _CHECK = struct.Struct("<Qd"), struct.Struct("<I")


def write_checkpoint(folder: Path, epoch: int, value: float, content: dict[str, Any]) -> None:
    """Put the state after ``epoch`` in the place of the one before, by one ``rename``."""
    body = cloudpickle.dumps(content)
    head = _HEAD.pack(epoch, value)
    new = folder / f".{NAME}-{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(head + _CHECK.pack(zlib.crc32(head)))
            file.write(hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest())
            file.write(body)
            file.flush()
            os.fsync(fd)  # before it has the name: after a power failure a name without its bytes would hide the older
        os.rename(new, folder / NAME)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def read_reported(folder: Path) -> tuple[int, float] | None:
    """Epoch and value of the checkpoint, or ``None`` where there is none."""
    try:
        with (folder / NAME).open("rb") as file:
            data = file.read(_HEAD.size + _CHECK.size)
    except FileNotFoundError:
        return None
    head, check = data[: _HEAD.size], data[_HEAD.size :]
    if len(check) < _CHECK.size or _CHECK.unpack(check) != (zlib.crc32(head),):
        return None
    epoch, value = _HEAD.unpack(head)
    return int(epoch), float(value)


def read_checkpoint(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """Epoch and state, or ``None`` where there are none that are whole."""
    reported = read_reported(folder)
    if reported is None:
        return None
    data = (folder / NAME).read_bytes()[_HEAD.size + _CHECK.size :]
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        logger.warning("%s is damaged: the trial begins anew", folder / NAME)
        return None
    return reported[0], dict(pickle.loads(body))  # noqa: S301 (written by us, into a folder of this user)
