"""Arithmetic on NumPy arrays for the reduction of gradients; also for frameworks whose memory NumPy can view.

tensors.add([total], [gradient])
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole.adapters.numpy import adapter
from farandole.gradients.snapshots import SAMPLE_BYTES, processor_model, sample_ranges
from farandole.gradients.tensors import Tensors

AnyArray: TypeAlias = npt.NDArray[Any]


@final
class NumpyTensors(Tensors[AnyArray]):
    """See ``Tensors``."""

    adapter = adapter

    def zeros_like(self, tensor: AnyArray) -> AnyArray:
        """See ``Tensors``; in the byte order of this machine."""
        return np.zeros(tensor.shape, tensor.dtype.newbyteorder("="))

    def clone(self, tensor: AnyArray) -> AnyArray:
        """See ``Tensors``."""
        return tensor.copy("K")

    def part(self, tensor: AnyArray, begin: int, end: int) -> AnyArray:
        """See ``Tensors``."""
        return tensor.reshape(-1)[begin:end]

    def copy(self, targets: Sequence[AnyArray], sources: Sequence[AnyArray]) -> None:
        """See ``Tensors``."""
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source, casting="equiv")

    def add(self, targets: Sequence[AnyArray], others: Sequence[AnyArray]) -> None:
        """See ``Tensors``."""
        for target, other in zip(targets, others, strict=True):
            np.add(target, other, out=target)

    def scale(self, tensors: Sequence[AnyArray], factor: float) -> None:
        """See ``Tensors``."""
        for tensor in tensors:
            np.multiply(tensor, factor, out=tensor, casting="unsafe")

    def fill(self, tensor: AnyArray, value: int) -> None:
        """See ``Tensors``."""
        tensor.fill(value)

    def sample(self, tensor: AnyArray, turn: int) -> AnyArray:
        """See ``Tensors``."""
        if tensor.nbytes <= SAMPLE_BYTES:
            return tensor
        flat = tensor.reshape(-1)
        parts = sample_ranges(len(flat), tensor.nbytes, turn)
        return np.concatenate([flat[part.start : part.stop] for part in parts])

    def processor(self, param: object) -> str:
        """See ``Tensors``; includes the number of processors, by which libraries split their sums."""
        return f"{processor_model()}, {len(os.sched_getaffinity(0))} of them, numpy {np.__version__}"


tensors = NumpyTensors()
