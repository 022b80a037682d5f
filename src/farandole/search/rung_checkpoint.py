"""Checkpoint of a trial at a rung: one file, whole or missing.

    key = key_of(parameters, seed)
    write_checkpoint(folder, key, epoch=3, value=0.25, content=state.state_dict(), metrics={"accuracy": 0.5})
    read_reported(folder, key)                              # (3, 0.25), or None
    read_metrics(folder)                                    # {"accuracy": 0.5}
    read_checkpoint(folder, key)                            # (3, {...}), or None

The file consists of a head, a digest, a pickle and the metrics in JSON. The pickle is read only if no other user can
have written it. A file that is not whole counts as missing, which costs the trial its epochs and no more. The file is
written before the search gets the report of the epoch, so it has the value as well: a search that was killed in between
reads the value from the file. The file is on the disk before the log: after a power failure another trial may have this
number, so the file has the ``key`` of its trial.
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
"""End of a file with metrics: length and checksum of the metrics. Unpickling stops before them."""


def key_of(parameters: Mapping[str, Any], seed: int) -> bytes:
    """Digest of the parameters and the seed of a trial; trials that train differently have different digests."""
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
    """Replace the checkpoint by the state after ``epoch``, with one ``rename``."""
    body, told = cloudpickle.dumps(content), json.dumps(dict(metrics or {})).encode()
    body += told + _FOOT.pack(len(told), zlib.crc32(told), _MAGIC)
    head = _HEAD.pack(key, epoch, value)
    # Processes on two hosts may have the same pid, and write at the same time if one of them was given up.
    new = folder / f".{NAME}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(head + _CHECK.pack(zlib.crc32(head)))
            file.write(hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest())
            file.write(body)
            file.flush()
            os.fsync(fd)  # before the rename: after a power failure, a name without data would hide the older file
        os.rename(new, folder / NAME)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def read_reported(folder: Path, key: bytes) -> tuple[int, float] | None:
    """Epoch and value of the checkpoint, or ``None`` if this trial has none."""
    try:
        # NFS caches that a name does not exist until its folder is opened again; another host may have written it.
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
    """Metrics of a checkpoint that exists; empty if it has none, or none that are whole."""
    data = (folder / NAME).read_bytes()
    with contextlib.suppress(struct.error):  # an older file that is short
        length, check, magic = _FOOT.unpack(data[-_FOOT.size :])
        told = data[-_FOOT.size - length : -_FOOT.size]
        if magic == _MAGIC and zlib.crc32(told) == check:
            return {str(name): float(value) for name, value in json.loads(told).items()}
    return {}


def read_checkpoint(folder: Path, key: bytes) -> tuple[int, dict[str, Any]] | None:
    """Epoch and state, or ``None`` if this trial has no whole checkpoint."""
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
