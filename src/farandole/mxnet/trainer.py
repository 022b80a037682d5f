"""Gluon's trainer with the gradients of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from mxnet.gluon import Parameter, ParameterDict, Trainer

from farandole.adapters.mxnet import adapter
from farandole.adapters.numpy import verbs as numpy_verbs
from farandole.collective import ReduceOp, Reduction
from farandole.errors import UnsupportedError, UsageError
from farandole.mxnet.gradients import NDArrayGradients
from farandole.mxnet.optimizer import DistributedOptimizer
from farandole.runtime.collectives.compression import CompressorLike, NoneCompressor
from farandole.runtime.session.init import takes_part
from farandole.runtime.session.process_sets import ProcessSet, global_process_set


class DistributedTrainer(Trainer):  # type: ignore[misc] # MXNet has no types
    """``mx.gluon.Trainer`` with the gradients of all ranks.

    >>> trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    >>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    >>> for x, y in batches:                                # other ones on each rank
    ...     with mx.autograd.record():
    ...         loss = loss_of(net(x), y)
    ...     loss.backward()
    ...     trainer.step(len(x))                            # the samples of this rank

    A step equals the step of one worker on the batches of all ranks: the sum of all gradients, divided by the sum of
    the ranks' arguments of ``step``, which may differ. Between ``allreduce_grads()`` and ``update()`` gradients are
    sums over the ranks, divided by ``gradient_predivide_factor``. A rank without a gradient for a parameter contributes
    zeros; a parameter without a gradient on any rank is stale, as in Gluon.

    ``params``, ``optimizer`` and ``optimizer_params`` are Gluon's. Parameters are matched by their order, trainers of
    the same ``prefix`` by the order in which ranks make them. ``compression``: for example ``hvd.Compression.fp16``.
    ``num_groups``: number of groups of gradients reduced together. ``process_set``: the ranks that share gradients.
    """

    def __init__(
        self,
        params: ParameterDict | Mapping[str, Parameter] | Sequence[Parameter],
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        compression: CompressorLike = NoneCompressor,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn("DistributedTrainer reduces gradients itself: it takes the optimizer inside", stacklevel=2)
            optimizer = optimizer._optimizer
        if gradient_predivide_factor <= 0 or num_groups < 0:
            raise UsageError(
                f"gradient_predivide_factor={gradient_predivide_factor}, num_groups={num_groups}: the one is above 0, "
                "the other a number from 0"
            )
        # Gluon sorts a dict by names with numbers of the process's blocks: "dense10" is before "dense9", so the order
        # differs on a rank that has made one block more. The order of the dict itself is the same on all ranks.
        self._ordered = list(params.values() if isinstance(params, Mapping | ParameterDict) else params)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._compression, self._predivide = compression, gradient_predivide_factor
        self._prefix, self._num_groups, self._process_set = prefix or "", num_groups, process_set
        self._trained: list[Parameter] = []
        self._reduced: NDArrayGradients | None = None
        self._label, self._bound = "", 0  # label of a generation, and number of bindings since it began
        if len(self._contexts or ()) > 1:
            raise UnsupportedError(
                f"parameters on {', '.join(map(str, self._contexts))}: a rank has one device; start a rank for each"
            )
        self._bind_if_made()

    def rejoin(self, label: str) -> None:
        """Reduce with the ranks of a new generation; ``label`` must be the same on all of them."""
        self._label, self._bound, self._reduced = label, 0, None
        self._bind_if_made()

    def _bind_if_made(self) -> None:
        """Bind now if all shapes are known, so that a rank without a step can serve other ranks' steps in ``join``."""
        if not any(param._deferred_init for param in self._ordered):
            self._bind()

    def _check_and_rescale_grad(self, scale: float) -> None:
        """Set the factor of gradients (1 / batch size in ``step`` and ``update``) for the batches of all ranks."""
        if takes_part(self._process_set, "DistributedTrainer") and len(self._process_set.ranks) > 1:
            name = f"trainer.{self._prefix}.batch"
            [total] = numpy_verbs.allreduce([1.0 / scale], name, Reduction(ReduceOp.SUM), self._process_set).run()
            scale = self._predivide / total
        super()._check_and_rescale_grad(scale)

    def _allreduce_grads(self) -> None:
        """Replace gradients by the sums over all ranks."""
        reduce = self._bind()
        arrays = [(param.list_data()[0], param.list_grad()[0]) for param in self._trained]
        compressed = [self._compression.compress(grad) for _, grad in arrays]
        given = [each if data._fresh_grad else None for (data, _), (each, _) in zip(arrays, compressed, strict=True)]
        sums = reduce(given, [data for data, _ in arrays])
        for (data, grad), (_, context), reduced in zip(arrays, compressed, sums, strict=True):
            if reduced is not None:
                adapter.assign(grad, self._compression.decompress(reduced, context))
                data._fresh_grad = True  # also if only other ranks have a gradient; otherwise this rank would skip it

    def _bind(self) -> NDArrayGradients:
        """Reduction of the gradients of the currently trainable parameters; a script may freeze some."""
        trained = [param for param in self._ordered if param.grad_req != "null"]
        if self._reduced is None or trained != self._trained:
            if sparse := [param.name for param in trained if param._grad_stype != "default"]:
                raise UnsupportedError(f"{sparse[0]} has sparse gradients: make its layer with sparse_grad=False")
            self._reduced = NDArrayGradients(
                [self._compression.compress(param.list_grad()[0])[0] for param in trained],
                Reduction(ReduceOp.SUM, prescale=1 / self._predivide),
                process_set=self._process_set,
                kind=f"trainer {self._prefix}".strip(),
                group_count=self._num_groups,
                titles=[param.name for param in trained],
            )
            self._trained = trained
            if self._label:
                self._bound += 1
                self._reduced.rejoin(f"{self._label}.{self._bound}")
        return self._reduced
