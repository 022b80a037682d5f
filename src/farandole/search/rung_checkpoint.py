"""Checkpoint of a trial at a rung: one file, whole or not there.

    key = key_of(parameters, seed)
    write_checkpoint(folder, key, epoch=3, value=0.25, content=state.state_dict(), metrics={"accuracy": 0.5})
    read_reported(folder, key)                              # (3, 0.25), or None
    read_metrics(folder)                                    # {"accuracy": 0.5}
    read_checkpoint(folder, key)                            # (3, {...}), or None

The file is a head, a digest, a pickle and, behind that, the metrics in JSON. The pickle is read only where this user
alone can have written it. A file that is not whole is taken for none, which costs the trial its epochs and no more. It
is written before the search hears of the epoch, so it has the value as well: a search that was killed in between learns
it from there. And it is on the disk before the log is: after a power failure the trial with this number may be another
one, so the file has its ``key``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import secrets
import socket
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from farandole.control.private_file import NotPrivateError, read_private
from farandole.events import logger

NAME = "rung.checkpoint"
_DIGEST_BYTES = 16
_HEAD, _CHECK = struct.Struct("<16sQd"), struct.Struct("<I")
_FOOT, _MAGIC = struct.Struct("<II8s"), b"METRICS1"
"""End of a file that has metrics: their length and their check. Whoever reads the pickle stops before them."""


def key_of(parameters: Mapping[str, Any], seed: int) -> bytes:
    """Digest of what a trial trains with, which no other trial has that would train otherwise."""
    text = json.dumps([sorted(parameters.items()), seed], default=repr)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def write_checkpoint(
    folder: Path,
    key: bytes,
    epoch: int,
    value: float,
    content: dict[str, Any],
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Put the state after ``epoch`` in the place of the one before, by one ``rename``."""
    body, told = cloudpickle.dumps(content), json.dumps(dict(metrics or {})).encode()
    body += told + _FOOT.pack(len(told), zlib.crc32(told), _MAGIC)
    head = _HEAD.pack(key, epoch, value)
    # Processes of two hosts may have the same number, and write at once where one of them was given up.
    new = folder / f".{NAME}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
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


def read_reported(folder: Path, key: bytes) -> tuple[int, float] | None:
    """Epoch and value of the checkpoint, or ``None`` where there is none of this trial."""
    try:
        # NFS remembers that a name did not exist until its folder is opened again, and the worker was on another host.
        for each in (folder.parent, folder):
            os.close(os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        with (folder / NAME).open("rb") as file:
            data = file.read(_HEAD.size + _CHECK.size)
    except FileNotFoundError:
        return None
    head, check = data[: _HEAD.size], data[_HEAD.size :]
    if len(check) < _CHECK.size or _CHECK.unpack(check) != (zlib.crc32(head),):
        return None
    whose, epoch, value = _HEAD.unpack(head)
    if whose != key:
        logger.warning("%s is of a trial with other parameters, and is not used", folder / NAME)
        return None
    return int(epoch), float(value)


def read_metrics(folder: Path) -> dict[str, float]:
    """Metrics of the checkpoint, which has been read; of one without any that are whole, none."""
    data = (folder / NAME).read_bytes()
    with contextlib.suppress(struct.error):  # of an older one that is short
        length, check, magic = _FOOT.unpack(data[-_FOOT.size :])
        told = data[-_FOOT.size - length : -_FOOT.size]
        if magic == _MAGIC and zlib.crc32(told) == check:
            return {str(name): float(value) for name, value in json.loads(told).items()}
    return {}


def read_checkpoint(folder: Path, key: bytes) -> tuple[int, dict[str, Any]] | None:
    """Epoch and state, or ``None`` where there are none of this trial that are whole."""
    reported = read_reported(folder, key)
    if reported is None:
        return None
    try:
        data = read_private(folder / NAME)[_HEAD.size + _CHECK.size :]
    except NotPrivateError as error:
        logger.warning("%s is not read, as it could run anything here: %s", folder / NAME, error)
        return None
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        logger.warning("%s is damaged: the trial begins anew", folder / NAME)
        return None
    return reported[0], dict(pickle.loads(body))  # noqa: S301 (of a file that this user alone can write)
