"""Reduction of one optimizer's gradients, except for the local ones.

with distribution.reducing(optimizer, gradients, variables) as reduced:
    ...                                     # calls the optimizer's own ``apply`` with them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, final

from farandole.collective import ReduceOp, Reduction
from farandole.errors import UsageError
from farandole.gradients.reduction_options import ReductionOptions
from farandole.graphs.gradients import GraphGradients
from farandole.keras.backends import backend
from farandole.keras.compression import CompressorLike, NoneCompressor
from farandole.keras.variables import is_overwritten, path_of, value_of
from farandole.runtime.session.init import takes_part


@final
@dataclass(frozen=True)
class KerasTerms:
    """Arguments of a distributed optimizer that concern gradients; ``label`` is the same on all ranks."""

    terms: ReductionOptions
    compression: CompressorLike
    label: str
    sparse_as_dense: bool
    scales_local: bool
    factor: float
    """Factor of all gradients, also of local ones: the number of passes if the user wants their sum."""


@final
class Distribution:
    """Reductions of one optimizer, one for each list of variables whose gradients it gets."""

    def __init__(self, asked: KerasTerms, local: Sequence[Any]) -> None:
        self._asked, self._local = asked, list(local)
        self._local_ids = {id(variable) for variable in local}
        self._reductions: dict[object, tuple[list[Any], GraphGradients]] = {}
        self._latest: GraphGradients | None = None
        self._watcher: Callable[[GraphGradients], object] = _nobody
        self._is_inside = False
        self.is_scaled = False
        """True once loss scaling decides whether to step: then no gradient may be local."""

    @property
    def has_local(self) -> bool:
        """True if some variables have local gradients."""
        return bool(self._local)

    @property
    def local(self) -> list[Any]:
        """Variables with local gradients, which differ between ranks."""
        return self._local

    def add_local(self, variable: Any) -> None:
        """Make the gradients of one more variable local; raises ``UsageError`` after the first step."""
        if self._reductions:
            raise UsageError("register_local_var() after the first step: steps are compiled by then; call it before")
        self._local.append(variable)
        self._local_ids.add(id(variable))

    def watch(self, watcher: Callable[[GraphGradients], object]) -> None:
        """Call ``watcher`` with the reduction made last, and with each that is made from now on."""
        self._watcher = watcher
        if self._latest is not None:
            watcher(self._latest)

    def anew(self) -> Distribution:
        """New ``Distribution`` with the same arguments, for another optimizer."""
        return Distribution(self._asked, self._local)

    @contextmanager
    def reducing(
        self, optimizer: Any, grads: Sequence[Any], variables: Sequence[Any] | None, values: Sequence[Any] | None = None
    ) -> Iterator[list[Any]]:
        """Context with the reduced gradients, in which nested calls from Keras do not reduce again.

        ``values``: values of the variables, if the variables themselves do not hold them (JAX).
        """
        if self._is_inside:
            yield list(grads)
            return
        self._is_inside = True
        try:
            # Before Keras 3.11 a LossScaleOptimizer has no ``_trainable_variables`` itself.
            trained = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_trainable_variables", ())
            variables = list(trained if variables is None else variables)
            shared = self._shared(optimizer, list(grads), variables, trained, values)
            yield self._multiplied(shared, variables)
        finally:
            self._is_inside = False

    def _shared(
        self,
        optimizer: Any,
        grads: list[Any],
        variables: list[Any],
        trained: Sequence[Any],
        values: Sequence[Any] | None,
    ) -> list[Any]:
        if not takes_part(self._asked.terms.process_set, "an optimizer's step"):
            return grads
        backend.refuse_replicas()
        if len(grads) != len(variables):
            raise UsageError(
                f"{len(grads)} gradients for the {len(variables)} variables that {optimizer.name} was built with: "
                "where layers have been frozen or thawed since, compile the model with a new optimizer"
            )
        held = list(map(value_of, variables)) if values is None else list(values)
        return self._reduced(grads, variables, held, _names(variables, trained))

    def _multiplied(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        factor = self._asked.factor
        if factor == 1.0:
            return grads
        pairs = zip(grads, variables, strict=True)
        return [g if g is None or is_overwritten(v) else backend.scaled(g, factor) for g, v in pairs]

    def _reduced(self, grads: list[Any], variables: list[Any], values: list[Any], names: list[str]) -> list[Any]:
        process_set = self._asked.terms.process_set
        shared: list[int] = []
        overwritten: list[int] = []
        members = cache(lambda: backend.members(process_set))
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if id(variable) in self._local_ids:
                if self._asked.scales_local and grad is not None and not is_overwritten(variable):
                    grads[i] = backend.scaled(grad, 1 / members())
            elif backend.is_sparse(grad) and not self._asked.sparse_as_dense:
                how = self._asked.terms.how
                factor = how.prescale * how.postscale / (members() if how.op == ReduceOp.AVERAGE else 1)
                name = f"keras.{self._asked.label}.{names[i]}"
                grads[i] = backend.scaled(backend.gather(grad, name, process_set), factor)
            elif grad is not None or backend.takes_none:
                (overwritten if is_overwritten(variable) else shared).append(i)
        plain = self._asked.terms, self._asked.compression
        for chosen, (terms, compression) in ((shared, plain), (overwritten, self._largest)):
            if chosen:
                given = [(grads[i], variables[i], values[i], names[i]) for i in chosen]
                for i, result in zip(chosen, self._together(given, terms, compression), strict=True):
                    grads[i] = result
        return grads

    @property
    def _largest(self) -> tuple[ReductionOptions, CompressorLike]:
        """Options for variables that Keras overwrites: the maximum, as Keras does when it accumulates."""
        return ReductionOptions(Reduction(ReduceOp.MAX), process_set=self._asked.terms.process_set), NoneCompressor

    def _together(
        self, given: list[tuple[Any, Any, Any, str]], terms: ReductionOptions, compression: CompressorLike
    ) -> list[Any]:
        """Reduced gradients of ``given``: tuples of gradient, variable, value and name."""
        grads, variables, values, names = map(list, zip(*given, strict=True))
        # For a missing gradient, the variable's value provides the compressed dtype and the context.
        whole = [backend.dense(v if g is None else g) for g, v in zip(grads, values, strict=True)]
        compressed = [compression.compress(each) for each in whole]
        reduction = self._reduction(variables, [tensor for tensor, _ in compressed], names, terms)
        travelling = [None if g is None else tensor for g, (tensor, _) in zip(grads, compressed, strict=True)]
        reduced = backend.reduce(reduction, travelling, values)
        pairs = zip(reduced, compressed, strict=True)
        return [None if result is None else compression.decompress(result, context) for result, (_, context) in pairs]

    def _reduction(
        self, variables: list[Any], grads: list[Any], names: list[str], terms: ReductionOptions
    ) -> GraphGradients:
        key = tuple(map(id, variables))
        found = self._reductions.get(key)
        if found is None:
            like = [(tuple(v.shape), backend.dtype(g)) for v, g in zip(variables, grads, strict=True)]
            found = variables, GraphGradients(like, names, terms, f"keras.{self._asked.label}")
            if terms is self._asked.terms:
                self._latest = found[1]
                self._watcher(found[1])
            self._reductions[key] = found  # keeps the variables alive, so that no ``id`` is reused
        return found[1]


def _nobody(_: GraphGradients) -> None:
    pass


def _names(variables: Sequence[Any], trained: Sequence[Any]) -> list[str]:
    """Names with the variables' positions in the optimizer: gradients may be of some variables only.

    The path alone, which is without numbers, would be the same for two layers of one class.
    """
    places = {id(variable): place for place, variable in enumerate(trained)}
    found = [places.get(id(variable), len(places) + i) for i, variable in enumerate(variables)]
    return [f"{place}.{path_of(variable)}" for place, variable in zip(found, variables, strict=True)]
