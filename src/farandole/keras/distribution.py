"""Gradients of one optimizer on their way to the ranks and back, with those that stay here.

with distribution.reducing(optimizer, gradients, variables) as reduced:
    ...                                     # what calls the optimizer's own ``apply`` with them
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
    """Arguments of a distributed optimizer, as far as they are about gradients; ``label`` is the same on all ranks."""

    terms: ReductionOptions
    compression: CompressorLike
    label: str
    sparse_as_dense: bool
    scales_local: bool
    factor: float
    """Of all gradients, those that stay here, too: the number of passes where their sum was asked for."""


@final
class Distribution:
    """Reductions of one optimizer, one for each list of variables that it is given gradients for."""

    def __init__(self, asked: KerasTerms, local: Sequence[Any]) -> None:
        self._asked, self._local = asked, list(local)
        self._local_ids = {id(variable) for variable in local}
        self._reductions: dict[object, tuple[list[Any], GraphGradients]] = {}
        self._latest: GraphGradients | None = None
        self._watcher: Callable[[GraphGradients], object] = _nobody
        self._is_inside = False
        self.is_scaled = False
        """True once scaled losses decide whether to step: no gradient may stay on its rank."""

    @property
    def has_local(self) -> bool:
        """True if gradients of some variables stay here."""
        return bool(self._local)

    @property
    def local(self) -> list[Any]:
        """Variables of which each rank has its own."""
        return self._local

    def add_local(self, variable: Any) -> None:
        """Let the gradients of one more variable stay here; raises ``UsageError`` after the first step."""
        if self._reductions:
            raise UsageError("register_local_var() after the first step: steps are compiled by then; call it before")
        self._local.append(variable)
        self._local_ids.add(id(variable))

    def watch(self, watcher: Callable[[GraphGradients], object]) -> None:
        """Call ``watcher`` with the reduction that was made last, and with each that is made from now on."""
        self._watcher = watcher
        if self._latest is not None:
            watcher(self._latest)

    def anew(self) -> Distribution:
        """One on the same terms, for another optimizer."""
        return Distribution(self._asked, self._local)

    @contextmanager
    def reducing(
        self, optimizer: Any, grads: Sequence[Any], variables: Sequence[Any] | None, values: Sequence[Any] | None = None
    ) -> Iterator[list[Any]]:
        """Context in which the gradients are reduced, and are not again by what Keras calls in there.

        ``values`` are those of the variables, where the variables do not hold them.
        """
        if self._is_inside:
            yield list(grads)
            return
        self._is_inside = True
        try:
            # Before Keras 3.11 a LossScaleOptimizer keeps none itself.
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
        """Terms of the numbers that Keras assigns: the largest, as it takes itself where it accumulates."""
        return ReductionOptions(Reduction(ReduceOp.MAX), process_set=self._asked.terms.process_set), NoneCompressor

    def _together(
        self, given: list[tuple[Any, Any, Any, str]], terms: ReductionOptions, compression: CompressorLike
    ) -> list[Any]:
        """The reduced gradients of ``given``: gradients, variables, the values of these, and names."""
        grads, variables, values, names = map(list, zip(*given, strict=True))
        # One that this rank has none of travels as the others' do: like what would become of the variable.
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
            self._reductions[key] = found  # with the variables, so that their ``id`` stays theirs
        return found[1]


def _nobody(_: GraphGradients) -> None:
    pass


def _names(variables: Sequence[Any], trained: Sequence[Any]) -> list[str]:
    """Names by the places that the optimizer has given the variables: gradients may be of some of them only.

    The path alone would not tell two layers of one kind apart, as it is without the numbers of these.
    """
    places = {id(variable): place for place, variable in enumerate(trained)}
    found = [places.get(id(variable), len(places) + i) for i, variable in enumerate(variables)]
    return [f"{place}.{path_of(variable)}" for place, variable in zip(found, variables, strict=True)]
