"""Virtual workers: the same bits after every step, for any number of workers.

optimizer = hvd.DistributedOptimizer(optimizer, virtual_workers=hvd.VirtualWorkers(8, model))
for x, y in global_batches:
    for shard in optimizer.shards(len(x)):
        loss_of(model(x[shard.rows]), y[shard.rows]).backward()
    optimizer.step()
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, final

import torch

from farandole.adapters.torch_targets import new_gradient, overlap
from farandole.adapters.torch_tensors import tensors
from farandole.errors import UsageError
from farandole.gradients.optimizer_key import OptimizerKey
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.shard_reducer import Shard, ShardReducer

_is_contiguous = torch.Tensor.is_contiguous
_holders_of: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count", int)


def _holders(gradients: list[torch.Tensor | None]) -> list[tuple[int, int, bool] | None]:
    """Reference counts of each gradient and of its memory, and whether the memory is from torch's own allocator.

    To be compared with ``_ALONE``: the caller's own references are included, and their number depends on the version.
    """
    return [
        None
        if grad is None
        else (sys.getrefcount(grad), _holders_of(grad.untyped_storage()._cdata), grad.untyped_storage().resizable())
        for grad in gradients
    ]


_ALONE = _holders([torch.zeros(1)])[0] if _holders_of is not int else None
"""Reference counts of a gradient without other owners; ``None`` if torch has no count: then gradients are copied."""

STEP = "virtual_step"
"""Key of the step counter in the optimizer's first parameter group, which checkpoints include."""


@final
@dataclass(frozen=True)
class VirtualWorkers:
    """Number of shards of every global batch, for any number of workers up to that number.

    >>> hvd.VirtualWorkers(8, model, seed=1)

    ``model``: module whose floating-point buffers (the running statistics of batch norm) the shards change, too: after
    a step, a changed buffer is the mean over the shards. ``seed``: seed of the shards' random streams (the global
    generators of torch, Python and, if imported, NumPy).
    """

    count: int
    model: torch.nn.Module | None = None
    seed: int = 0


@final
class TorchShardReducer(ShardReducer[torch.Tensor]):
    """``ShardReducer`` of an optimizer with these parameter ``groups``."""

    def __init__(
        self,
        groups: Callable[[], list[dict[str, Any]]],
        identity: OptimizerKey,
        terms: ReductionOptions,
        virtual: VirtualWorkers,
    ) -> None:
        self._groups, self._model = groups, virtual.model
        self._places: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
        """Places of the model's buffers during a step: a shard may replace the buffer objects."""
        super().__init__(tensors, identity, terms, virtual.count, virtual.seed)

    def shards(self, rows: int) -> Generator[Shard, None, None]:
        """See ``ShardReducer``; the end of the loop reduces, like the end of a backward pass in ``TorchReducer``.

        Raises ``UsageError`` if gradients of an earlier loop still exist: they would be lost.
        """
        if self._reduced and any(p.grad is not None and p.grad.any() for p in self.params()):
            raise UsageError(
                "shards() after another loop over shards() whose gradients no step() has used: they are not added up. "
                "Give one loop the rows of both, or call zero_grad() in between (also after a GradScaler has left out "
                "a step)"
            )
        yield from super().shards(rows)
        self.settle()

    def params(self) -> list[torch.Tensor]:
        """See ``ShardReducer``."""
        return [p for group in self._groups() for p in group["params"]]

    def wrap(self, closure: Callable[[], Any]) -> NoReturn:
        """Raise ``UsageError``: virtual workers do not support closures."""
        raise UsageError("step(closure) evaluates the loss as it likes: virtual workers need shards(), and step()")

    def _buffers(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        holders = [] if self._model is None else [module._buffers for module in self._model.modules()]
        self._places = [(held, name, each) for held in holders for name, each in held.items() if each is not None]
        every = list({id(each): each for _, _, each in self._places}.values())
        counters = [each for each in every if each.dtype is torch.int64 and not each.dim()]
        return [each for each in every if each.is_floating_point()], counters

    def _rewind(self) -> None:
        for held, name, tensor in self._places:
            held[name] = tensor
        super()._rewind()

    def restart(self) -> None:
        """See ``Reducer``."""
        self._places = []
        super().restart()

    def _push_shard(self, number: int, weight: float) -> None:
        for held, name, tensor in self._places:
            if (now := held[name]) is tensor:
                continue
            if now is None or now.shape != tensor.shape:
                raise UsageError(f"a shard has given the buffer {name} another shape: do so outside of shards()")
            with torch.no_grad():
                tensor.copy_(now)  # ``_rewind`` then restores the values for the next shard
            held[name] = tensor
        super()._push_shard(number, weight)

    def _step(self) -> int:
        step: int = self._groups()[0].get(STEP, 0)
        return step

    def _count_step(self) -> None:
        self._groups()[0][STEP] = self._step() + 1

    def _take_gradients(self, params: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        found = [param.grad for param in params]
        for param in params:
            param.grad = None
        if any(param.grad is not None for param in self.params()):
            raise UsageError("a parameter that was frozen was thawed within the loop over shards(): do that before it")
        if any(grad is not None and grad.layout is not torch.strided for grad in found):
            raise UsageError("virtual workers take dense gradients: use nn.Embedding(..., sparse=False)")
        if any(grad.dtype is not param.dtype for param, grad in zip(params, found, strict=True) if grad is not None):
            raise UsageError("virtual workers take gradients of their parameters' dtypes: leave grad_dtype as it is")
        others = any(holders not in (None, _ALONE) for holders in _holders(found))
        # Copy the script's buffers, which it may overwrite for the next shard, or views of one as of autograd.grad().
        if others or (not all(grad is None or _is_contiguous(grad) for grad in found) and overlap(found)):
            found = [None if grad is None else grad.clone() for grad in found]
        return [None if grad is None else grad.detach() for grad in found]

    def _set_gradient(self, param: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """See ``ShardReducer``; in the parameter's memory layout: fused optimizers traverse both as flat memory.

        On the parameter's device, too, because small sums are made on the host.
        """
        if gradient is not None and (gradient.stride(), gradient.device) != (param.stride(), param.device):
            gradient = new_gradient(param, gradient)
        param.grad = gradient

    @contextmanager
    def _generators(self, seed: int) -> Iterator[None]:
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_initialized():  # without it, torch would store a stack trace at each call
                torch.cuda.manual_seed_all(seed)
            yield
