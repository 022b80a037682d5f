"""PyTorch tensors as memory for the runtime."""

from __future__ import annotations

import ctypes
import math
from typing import TypeGuard, final

import torch

from farandole.collective import Array, DType
from farandole.errors import UnsupportedError, UsageError
from farandole.runtime.collectives.adapter import TensorAdapter, TensorSpec
from farandole.runtime.collectives.verbs import Verbs
from farandole.runtime.session.init import current

__all__ = ["DTYPES", "TORCH_DTYPES", "TorchAdapter", "adapter", "verbs"]

DTYPES: dict[torch.dtype, DType] = {getattr(torch, dtype.label): dtype for dtype in DType}
_STRIDED, _ROWS = torch.strided, torch.contiguous_format  # looked up once: each call of a collective needs them
TORCH_DTYPES: dict[DType, torch.dtype] = {dtype: found for found, dtype in DTYPES.items()}


@final
class TorchAdapter(TensorAdapter[torch.Tensor]):
    """Strided tensors in host memory, or on devices that the engine serves."""

    def array(self, tensor: torch.Tensor) -> Array:
        """See ``Adapter``."""
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None:
            raise UnsupportedError(
                f"a tensor of {tensor.dtype} does not travel; these do: {', '.join(d.label for d in DType)}"
            )
        # The storage, not the tensor: ``set_()`` or ``.data =`` may replace its memory while an engine still writes.
        if tensor.is_cpu:
            return Array(tensor.data_ptr(), tensor.numel(), dtype, tensor.untyped_storage())
        return Array(tensor.data_ptr(), tensor.numel(), dtype, tensor.detach(), _served(tensor.device))

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """See ``Adapter``."""
        return tuple(tensor.shape)

    def dense(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Adapter``; lazily conjugated or negated tensors are resolved."""
        _require_strided(tensor)
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
        return self.clone(tensor)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Adapter``; the copy has no autograd history."""
        _require_strided(tensor)
        source = tensor.detach() if tensor.requires_grad else tensor
        return source.clone(memory_format=_ROWS)

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """See ``Adapter``."""
        return torch.empty(shape, dtype=like.dtype, device=like.device)

    def assign(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See ``Adapter``."""
        with torch.no_grad():
            target.copy_(source)

    def written(self, tensor: torch.Tensor) -> None:
        """See ``Adapter``; a backward pass that saved the old values then raises instead of computing wrong values."""
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)

    def is_tensor(self, leaf: object) -> TypeGuard[torch.Tensor]:
        """See ``TensorAdapter``."""
        return isinstance(leaf, torch.Tensor)

    def spec(self, tensor: torch.Tensor) -> TensorSpec:
        """See ``TensorAdapter``; ``strides`` only for strided tensors with gaps or another order."""
        is_plain = tensor.layout is not _STRIDED or tensor.is_contiguous()
        strides = None if is_plain else tuple(tensor.stride())
        name = str(tensor.dtype).removeprefix("torch.")
        return TensorSpec(tuple(tensor.shape), name, tensor.element_size(), strides, str(tensor.device))

    def make(self, spec: TensorSpec) -> torch.Tensor:
        """See ``TensorAdapter``."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if spec.strides is None:
            return torch.empty(spec.shape, dtype=dtype, device=spec.device)
        return torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device=spec.device)

    def view(self, memory: Array, spec: TensorSpec) -> torch.Tensor | None:
        """See ``TensorAdapter``; of host memory only."""
        if memory.device != "cpu":
            return None
        if memory.count == 0:
            return self.make(spec)
        content = (ctypes.c_ubyte * memory.nbytes).from_address(memory.address)
        content.owner = memory.owner  # type: ignore[attr-defined] # the tensor keeps ``content`` alive
        flat = torch.frombuffer(content, dtype=getattr(torch, spec.dtype))
        if spec.strides is None:
            return flat[: math.prod(spec.shape)].view(spec.shape)
        return flat.as_strided(spec.shape, spec.strides)

    def host_bytes(self, tensor: torch.Tensor) -> Array:
        """See ``TensorAdapter``."""
        lies = tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        held = tensor if lies else tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return Array(held.data_ptr(), held.nbytes, DType.UINT8, held)

    def require_kept(self, tensor: torch.Tensor) -> None:
        """See ``TensorAdapter``."""
        if type(tensor.detach()) is not torch.Tensor:
            raise UnsupportedError(
                f"a {type(tensor).__name__} cannot be kept: what files give back are plain tensors; pass "
                "x.as_subclass(torch.Tensor), or what it consists of"
            )

    def host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``TensorAdapter``; preserves the memory format."""
        self.require_kept(tensor)
        return tensor.detach().to("cpu", copy=True, memory_format=torch.preserve_format)


def _require_strided(tensor: torch.Tensor) -> None:
    layout = getattr(tensor, "layout", None)
    if layout is None:
        raise UsageError(
            f"a {type(tensor).__name__} is no tensor: pass torch.as_tensor() of it, or take broadcast_object or "
            "allgather_object"
        )
    if layout is not _STRIDED:
        raise UnsupportedError(
            f"a tensor with layout {layout} does not travel as it is: pass tensor.to_dense(), "
            "or use sparse_allreduce_async"
        )


def _served(device: torch.device) -> str:
    session = current("a collective")
    if device.type not in session.devices:
        raise UnsupportedError(
            f"a tensor is on {device}, and the engine {session.engine!r} serves cpu tensors: pass tensor.cpu()"
        )
    return str(device)


adapter = TorchAdapter()
verbs: Verbs[torch.Tensor] = Verbs(adapter)
