"""Memory of gradients during the reduction: side by side in engine memory, or in place for a large gradient.

A bucket copies the values of gradients in and the reduced values out. Engine memory is only for staging: no tensor that
a user gets is a view of it. So gradients may lie anywhere, be new tensors in each step, change their memory, or be kept
by the script.
"""

# Engine memory is shared with peers, and with forked children (a data loader's workers), because its pages are not
# copied on write. With a view of it in ``param.grad``, a child could change the parent's gradients, and the next
# reduction would overwrite gradients that a script keeps. A lone gradient is in private memory and may stay there.
#
# One thread at a time uses a bucket: in an overlapped pass the background thread fills, weighs and reduces it, and the
# script's thread publishes it after the background thread has ended.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, final

import torch

from farandole.adapters.torch import adapter
from farandole.adapters.torch_targets import GradientSpec, Targets, dense, is_like, new_gradient
from farandole.adapters.torch_tensors import tensors
from farandole.collective import Array
from farandole.engines.engine import Memory
from farandole.gradients.agreement import Agreed
from farandole.gradients.buckets import Bucket
from farandole.gradients.parameters import GradientBucket
from farandole.gradients.tensors import Gradients
from farandole.torch.compression import CompressorLike


class TorchBucket(GradientBucket[torch.Tensor]):
    """Gradients of some parameters: ``pieces`` are their indices in ``params`` and ``specs``."""

    _is_ordinary = False

    def __init__(self, bucket: Bucket, params: Sequence[torch.Tensor], specs: Sequence[GradientSpec]) -> None:
        self.nbytes = bucket.nbytes
        self.slots = bucket.slots
        self.pieces = [slot.piece for slot in bucket.slots]
        self.params: list[torch.Tensor] = [params[piece] for piece in self.pieces]
        self.specs = [specs[piece] for piece in self.pieces]
        self._here = Targets(self.specs)
        self._targets: Gradients[torch.Tensor] = []

    def fill(self, gradients: Gradients[torch.Tensor], targets: Gradients[torch.Tensor]) -> None:
        """See ``GradientBucket``."""
        self._targets, self._is_ordinary = targets, targets is gradients
        self._fill(gradients)

    def fill_alone(self) -> None:
        """See ``GradientBucket``."""
        gradients = [param.grad for param in self.params]
        self.fill(gradients, self._here.of(gradients))

    @abstractmethod
    def _fill(self, gradients: Gradients[torch.Tensor]) -> None: ...

    @abstractmethod
    def _reduced(self) -> list[torch.Tensor]:
        """Reduced gradients, in memory that later steps may overwrite."""

    def publish(self, agreed: Agreed) -> None:
        """See ``GradientBucket``."""
        possible, self._targets = self._targets, []  # so that zero_grad() can free the memory of gradients
        values = self._reduced()
        if self._is_ordinary and agreed.is_dense:
            try:
                torch._foreach_copy_(possible, values)  # type: ignore[arg-type] # none is missing
            except RuntimeError:
                self._replace(self.params, values)
            return
        targets, sources, owners = [], [], []
        for piece, param, target, value in zip(self.pieces, self.params, possible, values, strict=True):
            if (kind := agreed.kinds[piece]) > 1:
                param.grad = value.to_sparse(kind - 1)
            elif kind and target is None:
                param.grad = new_gradient(param, value)
            elif kind and target is not None:
                targets.append(target)
                sources.append(value)
                owners.append(param)
        if targets:
            try:
                torch._foreach_copy_(targets, sources)
            except RuntimeError:
                self._replace(owners, sources)

    @staticmethod
    def _replace(params: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Set new gradients, because the old ones are inference tensors, whose memory cannot be written."""
        for param, value in zip(params, values, strict=True):
            param.grad = new_gradient(param, value)


@final
class LoneGradient(TorchBucket):
    """One large gradient, reduced in place if its memory layout is the one agreed on, else in a copy."""

    def __init__(self, bucket: Bucket, params: Sequence[torch.Tensor], specs: Sequence[GradientSpec]) -> None:
        super().__init__(bucket, params, specs)
        self._dtype = bucket.dtype
        self._lies = False

    def clear(self) -> None:
        """See ``GradientBucket``."""
        self._travel(self.specs[0].empty().zero_())

    def _fill(self, gradients: Gradients[torch.Tensor]) -> None:
        [gradient], [target], [spec] = gradients, self._targets, self.specs
        self._lies = gradient is target and is_like(gradient, spec)
        if gradient is None:
            self.clear()
        else:
            self._travel(gradient if self._lies else spec.empty().copy_(dense(gradient)))

    def weigh(self, weight: float) -> None:
        """See ``GradientBucket``."""
        self.array.owner.data.mul_(weight)  # ``.data``: keep the version, by which an overlapped pass detects changes

    def publish(self, agreed: Agreed) -> None:
        """See ``GradientBucket``."""
        [target], [param], [piece] = self._targets, self.params, self.pieces
        if self._lies and agreed.kinds[piece] == 1 and target is not None and target.data_ptr() == self.array.address:
            adapter.written(target)  # the engine wrote without PyTorch's knowledge: advance the version
        elif agreed.kinds[piece] == 1 and target is None:
            value = self.array.owner
            param.grad = value if value.stride() == param.stride() else new_gradient(param, value)
        else:
            super().publish(agreed)
        self._targets = []
        del self.array  # otherwise it would keep the gradient's memory

    def _reduced(self) -> list[torch.Tensor]:
        return [self.array.owner]

    def _travel(self, tensor: torch.Tensor) -> None:
        # The memory must stay valid if users change the tensor meanwhile, in hooks or after a failed pass:
        # ``grad.set_()`` and ``grad.data =`` replace the memory of that tensor, but not of an alias.
        alias = tensor.detach()
        self.array = Array(alias.data_ptr(), alias.numel(), self._dtype, alias)


class EngineBucket(TorchBucket):
    """Gradients side by side in engine memory, ``flat``."""

    def __init__(
        self, bucket: Bucket, params: Sequence[torch.Tensor], specs: Sequence[GradientSpec], memory: Memory
    ) -> None:
        super().__init__(bucket, params, specs)
        self.array = memory.array(bucket.dtype, bucket.start, bucket.count)
        self.flat = tensors.on_memory(self.array)

    def clear(self) -> None:
        """See ``GradientBucket``."""
        self.flat.zero_()

    def weigh(self, weight: float) -> None:
        """See ``GradientBucket``."""
        self.flat.mul_(weight)


@final
class DirectBucket(EngineBucket):
    """Gradients without compression."""

    def __init__(
        self, bucket: Bucket, params: Sequence[torch.Tensor], specs: Sequence[GradientSpec], memory: Memory
    ) -> None:
        super().__init__(bucket, params, specs, memory)
        self._views = [
            self.flat[slot.offset : slot.offset + slot.count].as_strided(spec.shape, spec.strides)
            for slot, spec in zip(self.slots, self.specs, strict=True)
        ]

    def _fill(self, gradients: Gradients[torch.Tensor]) -> None:
        if self._is_ordinary:
            torch._foreach_copy_(self._views, gradients)  # type: ignore[arg-type] # none is missing
            return
        targets, sources, absent = [], [], []
        for gradient, view in zip(gradients, self._views, strict=True):
            if gradient is None:
                absent.append(view)
            else:
                targets.append(view)
                sources.append(gradient)
        if targets:
            torch._foreach_copy_(targets, [dense(each) for each in sources])
        if absent:
            torch._foreach_zero_(absent)

    def _reduced(self) -> list[torch.Tensor]:
        return self._views


@final
class CompressedBucket(EngineBucket):
    """Gradients compressed into the bucket; results are decompressed."""

    def __init__(
        self,
        bucket: Bucket,
        params: Sequence[torch.Tensor],
        specs: Sequence[GradientSpec],
        memory: Memory,
        compression: CompressorLike,
    ) -> None:
        super().__init__(bucket, params, specs, memory)
        self._compression = compression
        self._contexts: list[Any] = [None] * len(self.slots)
        self._views = [
            self.flat[slot.offset : slot.offset + slot.count].view(travelling(spec, compression).shape)
            for slot, spec in zip(self.slots, self.specs, strict=True)
        ]

    def _fill(self, gradients: Gradients[torch.Tensor]) -> None:
        for i, (gradient, spec, view) in enumerate(zip(gradients, self.specs, self._views, strict=True)):
            taken = spec.empty().zero_() if gradient is None else dense(gradient)
            compressed, self._contexts[i] = self._compression.compress(taken)
            view.copy_(compressed)

    def _reduced(self) -> list[torch.Tensor]:
        pairs = zip(self._views, self._contexts, strict=True)
        return [self._compression.decompress(view, context) for view, context in pairs]


def travelling(spec: GradientSpec, compression: CompressorLike | None) -> torch.Tensor:
    """Tensor with the shape and dtype of such a gradient during the transfer."""
    empty = spec.empty()
    return empty if compression is None else compression.compress(empty.zero_())[0]
