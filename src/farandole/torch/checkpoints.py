"""Checkpoints of PyTorch tensors: ``farandole.checkpoint`` with files of ``torch.save``.

with hvd.Checkpoints("runs/a") as checkpoints:
    checkpoints.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO, final

import torch

from farandole.adapters.torch import adapter
from farandole.checkpoint.checkpoints import Checkpoints as _Checkpoints
from farandole.checkpoint.checkpoints import OnError
from farandole.checkpoint.codec import Codec


@final
class TorchCodec(Codec):
    """Files of ``torch.save``, read with ``weights_only``: loading runs no code from the file."""

    def __init__(self) -> None:
        super().__init__(adapter)

    def dump(self, content: dict[str, Any], file: BinaryIO) -> None:
        """See ``Codec``."""
        torch.save(content, file)

    def load(self, file: BinaryIO) -> dict[str, Any]:
        """See ``Codec``."""
        content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        return content


def Checkpoints(  # noqa: N802 (used like a class)
    root: str | os.PathLike[str], *, keep: int = 3, sharded: bool = False, on_error: OnError = "raise"
) -> _Checkpoints:
    """Durable checkpoints in the folder ``root``; for the arguments see ``farandole.checkpoint.Checkpoints``.

    >>> with hvd.Checkpoints("runs/a", keep=3) as checkpoints:
    ...     found = checkpoints.restore()
    ...     if found is not None:
    ...         model.load_state_dict(found.state["model"])
    ...     checkpoints.save(step, {"model": model.state_dict()})
    """
    return _Checkpoints(root, TorchCodec(), keep=keep, sharded=sharded, on_error=on_error)
