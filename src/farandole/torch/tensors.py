"""PyTorch's tensors, as the reduction of gradients handles them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from farandole.adapters.torch import adapter
from farandole.gradients.snapshots import SAMPLE_BYTES, processor_model, sample_ranges
from farandole.gradients.tensors import Gradients, Tensors


@final
class TorchTensors(Tensors[torch.Tensor]):
    """See ``Tensors``; parameters are tensors that hold their gradient in ``grad``."""

    adapter = adapter

    def zeros_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Tensors``; zeros like a parameter are no parameter."""
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
        """See ``Tensors``; of a tensor that is not contiguous, rows."""
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

    def gradient(self, param: torch.Tensor) -> torch.Tensor | None:
        """See ``Tensors``."""
        return param.grad

    def set_gradient(self, param: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """See ``Tensors``."""
        param.grad = gradient

    def is_trained(self, param: torch.Tensor) -> bool:
        """See ``Tensors``."""
        return param.requires_grad

    def untracked(self) -> Any:
        """See ``Tensors``."""
        return torch.no_grad()


tensors = TorchTensors()
