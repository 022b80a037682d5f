"""Checkpoint of a trial at a rung: one file, whole or not there.

    write_checkpoint(folder, epoch=3, content=state.state_dict())
    read_checkpoint(folder)                                 # (3, {...}), or None

The file is a digest and a pickle: its folder is the user's own, and nobody else's file gets there. A file that is not
whole is taken for none, which costs the trial its epochs and no more.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import cloudpickle

from farandole.events import logger

NAME = "rung.checkpoint"
_DIGEST_BYTES = 16


def write_checkpoint(folder: Path, epoch: int, content: dict[str, Any]) -> None:
    """Put the state after ``epoch`` in the place of the one before, by one ``rename``."""
    body = cloudpickle.dumps((epoch, content))
    new = folder / f".{NAME}-{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest())
            file.write(body)
            file.flush()
            os.fsync(fd)  # before it has the name: after a power failure a name without its bytes would hide the older
        os.rename(new, folder / NAME)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def read_checkpoint(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """Epoch and state, or ``None`` where there are none that are whole."""
    try:
        data = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return None
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        logger.warning("%s is damaged: the trial begins anew", folder / NAME)
        return None
    epoch, content = pickle.loads(body)  # noqa: S301 (written by us, into a folder of this user)
    return int(epoch), dict(content)
