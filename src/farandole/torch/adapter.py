"""PyTorch's tensors as memory for the runtime."""

from __future__ import annotations

from typing import final

import torch

from farandole.collective import Array, DType
from farandole.errors import UnsupportedError
from farandole.runtime.adapter import Adapter
from farandole.runtime.session import current
from farandole.runtime.verbs import Handles, Verbs

DTYPES: dict[torch.dtype, DType] = {getattr(torch, dtype.label): dtype for dtype in DType}
TORCH_DTYPES: dict[DType, torch.dtype] = {dtype: found for found, dtype in DTYPES.items()}


@final
class TorchAdapter(Adapter[torch.Tensor]):
    """Strided tensors in host memory, or on devices that the engine serves."""

    def array(self, tensor: torch.Tensor) -> Array:
        """See ``Adapter``."""
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None:
            raise UnsupportedError(
                f"a tensor of {tensor.dtype} does not travel; these do: {', '.join(d.label for d in DType)}"
            )
        device = tensor.device.type
        if device != "cpu" and device not in current("a collective").devices:
            engine = current().engine
            raise UnsupportedError(
                f"a tensor is on {tensor.device}, and the engine {engine!r} serves cpu tensors: pass tensor.cpu()"
            )
        if tensor.layout is not torch.strided:
            raise UnsupportedError(
                f"a tensor with layout {tensor.layout} does not travel as it is: pass tensor.to_dense(), "
                "or use sparse_allreduce_async"
            )
        return Array(tensor.data_ptr(), tensor.numel(), dtype, tensor, str(tensor.device))

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """See ``Adapter``."""
        return tuple(tensor.shape)

    def dense(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Adapter``; lazily conjugated or negated tensors are resolved."""
        if tensor.layout is not torch.strided:
            return tensor
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
        return self.clone(tensor)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Adapter``; the copy has no history."""
        if tensor.layout is not torch.strided:
            return tensor
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """See ``Adapter``."""
        return torch.empty(shape, dtype=like.dtype, device=like.device)

    def assign(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See ``Adapter``."""
        with torch.no_grad():
            target.copy_(source)

    def written(self, tensor: torch.Tensor) -> None:
        """See ``Adapter``; backward passes that saved the old values then fail instead of being wrong."""
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


adapter = TorchAdapter()
verbs: Verbs[torch.Tensor] = Verbs(adapter)
handles = Handles()
