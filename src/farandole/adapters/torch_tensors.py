"""Arithmetic on PyTorch tensors for the reduction of gradients, and norms.

tensors.add([total], [gradient])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import final

import torch

from farandole.adapters.torch import adapter
from farandole.gradients.snapshots import SAMPLE_BYTES, processor_model, sample_ranges
from farandole.gradients.tensors import Gradients, Tensors

HALF = (torch.float16, torch.bfloat16)


@final
class Untracked:
    """Context without autograd, like ``torch.no_grad()``, but three times as fast; entered in every step."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._before)


@final
class TorchTensors(Tensors[torch.Tensor]):
    """See ``Tensors``; parameters are tensors that hold their gradient in ``grad``."""

    adapter = adapter

    def zeros_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Tensors``; for a parameter, the result is a plain tensor."""
        return torch.zeros_like(tensor)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Tensors``."""
        return tensor.clone()

    def part(self, tensor: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """See ``Tensors``."""
        return tensor.reshape(-1)[begin:end]

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """See ``Tensors``."""
        if targets:
            torch._foreach_copy_(list(targets), list(sources))

    def add(self, targets: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
        """See ``Tensors``."""
        torch._foreach_add_(list(targets), list(others))

    def scale(self, tensors: Sequence[torch.Tensor], factor: float) -> None:
        """See ``Tensors``."""
        torch._foreach_mul_(list(tensors), factor)

    def fill(self, tensor: torch.Tensor, value: int) -> None:
        """See ``Tensors``."""
        tensor.fill_(value)

    def digests(self, tensors: Gradients[torch.Tensor]) -> list[int]:
        """See ``Tensors``."""
        return super().digests([None if t is None or t.layout is not torch.strided else t for t in tensors])

    def sample(self, tensor: torch.Tensor, turn: int) -> torch.Tensor:
        """See ``Tensors``; samples rows of a tensor that is not contiguous."""
        if tensor.layout is not torch.strided or tensor.nbytes <= SAMPLE_BYTES:
            return tensor
        lines = tensor.detach()
        lines = lines.view(-1) if lines.is_contiguous() else lines
        parts = sample_ranges(len(lines), tensor.nbytes, turn)
        return torch.cat([lines[part.start : part.stop] for part in parts])

    def processor(self, param: torch.Tensor) -> str:
        """See ``Tensors``."""
        device = torch.cuda.get_device_name(param.device) if param.is_cuda else ""
        model = f"{processor_model()} {torch.backends.cpu.get_cpu_capability()}"
        return f"{model}, {torch.get_num_threads()} threads, torch {torch.__version__} {device}"

    # Implemented in C, because every step calls these for every parameter.
    gradient = staticmethod(attrgetter("grad"))  # type: ignore[assignment]
    """See ``Tensors``."""
    is_trained = staticmethod(attrgetter("requires_grad"))  # type: ignore[assignment]
    """See ``Tensors``."""

    def set_gradient(self, param: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """See ``Tensors``."""
        param.grad = gradient

    def version(self, gradient: torch.Tensor) -> int:
        """See ``Tensors``."""
        return -1 if gradient.is_inference() else gradient._version

    def is_part(self, gradient: torch.Tensor) -> bool:
        """See ``Tensors``."""
        if gradient._is_view():  # true also for a former view that got its own memory
            return True
        return gradient.layout is torch.strided and gradient.untyped_storage().nbytes() != gradient.nbytes

    untracked = Untracked
    """See ``Tensors``."""


tensors = TorchTensors()


def gradients(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Existing gradients of ``params``; for sparse gradients, their values."""
    found = (param.grad for param in params)
    return [g.coalesce().values() if g.is_sparse else g for g in found if g is not None]


def squared_norm(tensors: Iterable[torch.Tensor]) -> float:
    """Sum of the squares of all elements: in float32 for 16-bit tensors, summed over tensors in float64.

    The sum over tensors is exactly rounded: learning rates depend on it, and ranks may order parameters differently.
    """
    alike: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    squares: list[float] = []
    for (dtype, _), members in alike.items():
        if dtype.itemsize == 2:
            norms = [torch.linalg.vector_norm(member, dtype=torch.float32) for member in members]
        else:
            norms = list(torch._foreach_norm(members))
        squares += [norm * norm for norm in torch.stack(norms).tolist()]  # one copy from the device for all
    return math.fsum(squares)


def norms(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Euclidean norms of ``tensors``, in at least float32; synchronizes with the device once."""
    found = [torch.linalg.vector_norm(t, dtype=torch.float32 if t.dtype in HALF else None) for t in tensors]
    lengths: list[float] = torch.stack([n.to(found[0].device, torch.float64) for n in found]).tolist()
    return lengths
