"""Outcome of a program on one rank: what it recorded, and how it ended."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable
from typing import Any, final

import msgspec
import numpy as np
import torch

from farandole.errors import FarandoleError
from workbench.differential.program import FILE

SAMPLES = 64


@final
class RecordedTensor(msgspec.Struct, frozen=True):
    """One recorded tensor: its bits as a digest, some of its numbers, the sum of all and that of their magnitudes."""

    kind: str
    digest: bytes = b""
    numbers: tuple[float, ...] = ()
    total: float = 0.0
    weight: float = 0.0


@final
class ProgramFailure(msgspec.Struct, frozen=True):
    """An error that ended a program: its type, the program's line, whether Farandole raised it, and the text."""

    kind: str
    line: int
    ours: bool
    text: str
    trace: str = ""


@final
class Outcome(msgspec.Struct, frozen=True):
    """Records of one rank by name, until it ended or failed; the oracle's also with a digest of each step."""

    values: dict[str, RecordedTensor] = {}
    failure: ProgramFailure | None = None
    steps: dict[str, bytes] = {}


def value_of(found: Any) -> RecordedTensor:
    """Digest of a value that a program recorded, with some of its numbers."""
    if not isinstance(found, torch.Tensor):
        return RecordedTensor(repr(found))
    tensor = _dense(found)
    kind = f"{found.layout} {tensor.dtype} {tuple(tensor.shape)} {'graph' if found.requires_grad else 'plain'}"
    wide = tensor.double().reshape(-1).numpy()
    stride = max(1, -(-wide.size // SAMPLES))
    with np.errstate(all="ignore"):
        sums = float(wide.sum()), float(np.abs(wide).sum())
    return RecordedTensor(kind, digest_of(found), tuple(wide[::stride].tolist()), *sums)


def digest_of(found: Any) -> bytes:
    """Digest of the bits of a tensor; empty for anything else."""
    if not isinstance(found, torch.Tensor):
        return b""
    tensor = _dense(found)
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return hashlib.blake2b(flat.view(torch.uint8).numpy().data, digest_size=8).digest()


def _dense(found: torch.Tensor) -> torch.Tensor:
    return (found.to_dense() if found.is_sparse else found).detach()


def run(program: Callable[[Any, Any], None], hvd: Any) -> Outcome:
    """Call ``program`` with ``hvd`` and a ``record`` function, and return the outcome."""
    values: dict[str, RecordedTensor] = {}

    def record(name: str, *found: Any) -> None:
        for i, each in enumerate(found):
            values[f"{name}.{i}"] = value_of(each)

    try:
        program(hvd, record)
    except Exception as error:
        return Outcome(values, failure_of(error))
    return Outcome(values)


def failure_of(error: BaseException) -> ProgramFailure:
    """Summary of an error that ended a program."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    line = (frames[-1].lineno or 0) if frames else 0
    text = "".join(traceback.format_exception(error))[-4000:]
    return ProgramFailure(type(error).__name__, line, isinstance(error, FarandoleError), str(error)[:500], text)
