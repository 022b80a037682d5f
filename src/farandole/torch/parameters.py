"""PyTorch parameters, with their gradients in ``param.grad``.

Reductions of sparse tensors; only for PyTorch.

done = hvd.sparse_allreduce_async(embedding.weight.grad, name="embedding", op=hvd.Average)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from farandole.adapters.torch import DTYPES, TORCH_DTYPES, adapter, verbs
from farandole.adapters.torch_targets import GradientSpec, Targets, code_of, dense, dtype_of, overlap
from farandole.adapters.torch_tensors import tensors
from farandole.collective import DType, Kind, ReduceOp
from farandole.engines.engine import Memory
from farandole.errors import UnsupportedError, UsageError
from farandole.gradients.buckets import BucketLayout, Piece
from farandole.gradients.parameters import GradientBucket, HoldingParameters, Parameters
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.tensors import Gradients
from farandole.runtime.lanes.reduction import reduction
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.memory import CompressedBucket, DirectBucket, LoneGradient, travelling


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to sum (or average) sparse COO tensors; call the returned function to get the result.

    >>> done = hvd.sparse_allreduce_async(embedding.weight.grad, name="embedding", op=hvd.Average)
    >>> gradient = done()

    Ranks may have different numbers of values. Indices and values are gathered, so an index may occur several times in
    the result: call ``coalesce`` on the result if that matters.
    """
    name = f"{name}.sparse"
    with verbs.telling(Kind.ALLGATHER, name, process_set):
        how = reduction(None, op).checked()
        if how.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
            raise UnsupportedError(
                f"sparse tensors are combined by Sum or Average, found {how.op.label}: use to_dense()"
            )
        if tensor.layout is not torch.sparse_coo:
            raise UsageError(
                f"sparse_allreduce_async of a tensor of layout {tensor.layout}: use to_sparse(), or allreduce"
            )
        entries = tensor if tensor.is_coalesced() else tensor.coalesce()
        parts = [entries.indices().t(), entries.values()]
    gathered = verbs.allgather(parts, name, process_set).begin()

    def finish() -> torch.Tensor:
        (every_index, _), (every_value, _) = gathered.wait()
        if how.op is ReduceOp.AVERAGE:
            every_value = every_value / len(process_set.ranks)
        return torch.sparse_coo_tensor(every_index.t(), every_value, tensor.shape, check_invariants=False)

    return finish


@final
class TorchParameters(HoldingParameters[torch.Tensor]):
    """See ``Parameters``."""

    def __init__(self, params: Sequence[torch.Tensor], groups: Sequence[int], terms: ReductionOptions) -> None:
        super().__init__(tensors, params, groups, terms)
        self._specs = [GradientSpec.of(param) for param in self.params]
        self._targets = Targets(self._specs)
        self.dtypes = [DTYPES.get(spec.dtype) for spec in self._specs]

    def described(self) -> list[object]:
        """See ``Parameters``."""
        return [(str(p.dtype), tuple(p.shape), p.stride()) for p in self.params]

    # -- gradients as they are ----------------------------------------------------------------------------------------

    def are_ordinary(self, gradients: Gradients[torch.Tensor]) -> bool:
        """See ``Parameters``."""
        return self._targets.are_ordinary(gradients)

    def targets(self, gradients: Gradients[torch.Tensor]) -> Gradients[torch.Tensor]:
        """See ``Parameters``."""
        return self._targets.of(gradients)

    def kept_apart(
        self, gradients: Gradients[torch.Tensor], targets: Gradients[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """See ``Parameters``."""
        pairs = zip(gradients, targets, strict=True)
        return [g if g is None or target is not None else dense(g).clone() for g, target in pairs]

    def codes(self, gradients: Gradients[torch.Tensor]) -> list[int]:
        """See ``Parameters``."""
        return list(map(code_of, self.params, gradients))

    def can_overlap(self) -> bool:
        """See ``Parameters``; not if gradients share memory, were cast, or are stale."""
        gradients = self.present()
        pairs = zip(map(dtype_of, self.params), self._specs, strict=True)
        was_cast = any(dtype is not None and dtype is not spec.dtype for dtype, spec in pairs)
        return not overlap(gradients) and not was_cast and self.without_stale(gradients) is gradients

    # -- the reduction ------------------------------------------------------------------------------------------------

    def adopt(self, dtypes: Sequence[DType | None]) -> None:
        """See ``Parameters``."""
        now = [
            spec.dtype if dtype is None else TORCH_DTYPES[dtype]
            for spec, dtype in zip(self._specs, dtypes, strict=True)
        ]
        self._specs = [spec._replace(dtype=dtype) for spec, dtype in zip(self._specs, now, strict=True)]
        self._targets = Targets(self._specs)
        self.dtypes = dtypes

    def piece(self, index: int) -> Piece:
        """See ``Parameters``."""
        array = adapter.array(travelling(self._specs[index], self._terms.compression))
        return Piece(array.count, array.dtype, array.device, self.groups[index])

    def buckets(self, layout: BucketLayout, memory: Memory) -> list[GradientBucket[torch.Tensor]]:
        """See ``Parameters``."""
        params, specs, compression = self.params, self._specs, self._terms.compression
        if compression is not None:
            return [CompressedBucket(b, params, specs, memory, compression) for b in layout.buckets]
        return [
            LoneGradient(b, params, specs) if b.lone else DirectBucket(b, params, specs, memory) for b in layout.buckets
        ]

    def begin_alone(
        self, index: int, gradient: torch.Tensor | None, kind: int, name: str, weight: float
    ) -> Callable[[], None]:
        """See ``Parameters``."""
        param, spec, terms = self.params[index], self._specs[index], self._terms
        if kind == 1:
            given = spec.empty().zero_() if gradient is None else gradient
            wait = verbs.allreduce([_weighed(given, weight)], name, terms.how, terms.process_set).begin().wait
        else:
            given = _weighed(spec.sparse(gradient, kind - 1), weight)
            reduced = sparse_allreduce_async(given, name, terms.how.op, terms.process_set)

            def wait() -> list[Any]:
                return [reduced()]

        def finish() -> None:
            [param.grad] = wait()

        return finish

    # -- a lag --------------------------------------------------------------------------------------------------------

    def shadowed(self) -> TorchParameters:
        """See ``Parameters``."""
        return TorchParameters([param.detach() for param in self.params], self.groups, self._terms)

    def difference(self, shadows: Parameters[torch.Tensor]) -> str | None:
        """See ``Parameters``."""
        for param, shadow in zip(self.params, shadows.params, strict=True):
            if param.shape != shadow.shape or param.dtype is not shadow.dtype or param.device != shadow.device:
                return (
                    f"a parameter of {tuple(shadow.shape)} and {shadow.dtype} on {shadow.device} is one of "
                    f"{tuple(param.shape)} and {param.dtype} on {param.device}"
                )
        return None


def _weighed(gradient: torch.Tensor, weight: float) -> torch.Tensor:
    return gradient if weight == 1.0 else gradient * weight
