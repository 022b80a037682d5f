"""Reduction of a compiled graph's gradients in one call of the graph.

    reduction = GraphGradients(shapes, names, ReductionOptions(how), "jax")
    reduction.spec                      # of a graph's call, with all gradients in and as many out
    reduction.reduce(arrays)            # the same outside of a graph

Order, buckets, the vote and the check for divergence are those of ``ListReducer``.

Threads. Threads of ``graphs/calls`` run the calls of graphs, and the script's thread runs eager calls.
``GraphGradients._lock`` is held for a whole step, including its collectives, because the reducer serves one thread. The
lock does not order calls: two waiting calls could run in another order on another rank and mix up steps. In practice no
call waits: the framework begins a run after the previous one has ended (``jax/programs``), and a script that trains one
model on two threads is wrong on any engine. ``_Revived._lock`` is held shortly: two runs of a program may both find
that the reduction was freed, and must get the same new one; the lock is released before the collective.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, final

import numpy as np
import numpy.typing as npt

from farandole.adapters.numpy import verbs
from farandole.adapters.numpy_tensors import tensors
from farandole.gradients.list_reducer import ListReducer
from farandole.gradients.optimizer_key import Names, OptimizerKey
from farandole.gradients.reduction_options import ReductionOptions
from farandole.graphs.calls import Function, provide
from farandole.graphs.library import AnyCall

_numbers = itertools.count()


@final
class _Revived:
    """Call of the reduction behind ``run``; after that reduction was freed, of a new one made by ``again``."""

    def __init__(self, run: Callable[[], Function | None], again: Callable[[], GraphGradients]) -> None:
        self._run, self._again = run, again
        self._lock = threading.Lock()  # two runs of a program may both find that the reduction was freed

    def __call__(self, call: AnyCall) -> None:
        with self._lock:
            run = self._run()
            if run is None:
                run = self._again()._reduce_call
                self._run = partial(_same, run)
        run(call)


def _same(run: Function) -> Function:
    return run


@final
class ReadWhenCompared(Sequence[Any]):
    """Weights that become NumPy arrays when ranks compare them, which they do at some steps only.

    Weights in the memory of a device are copied by ``convert`` then, and not in every step.
    """

    def __init__(self, weights: Sequence[Any], convert: Callable[[Any], Any]) -> None:
        self._weights, self._convert = weights, convert
        self._read: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._weights)

    def __getitem__(self, index: Any) -> Any:
        if index not in self._read:
            self._read[index] = self._convert(self._weights[index])
        return self._read[index]


@final
class GraphGradients:
    """Reduction of gradients with the shapes and dtypes of ``like``; ``label`` names their owner.

    With ``lag``, a call returns the gradients of ``lag`` calls ago, at first zeros. ``titles``: names of the parameters
    in errors if ``names`` is ``None``.

    If a call passes as many weights after the gradients, ranks compare these at some steps, before the weights change:
    ``DivergenceError`` on every rank if they differ. Weights are only read, without a copy.
    """

    def __init__(
        self,
        like: Sequence[tuple[tuple[int, ...], npt.DTypeLike]],
        names: Sequence[str] | None,
        terms: ReductionOptions,
        label: str,
        lag: int = 0,
        titles: Sequence[str] = (),
    ) -> None:
        params = [np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype in like]
        named = names is not None
        all_names = Names(zip(names or map(str, range(len(params))), params, strict=True), named)
        identity = OptimizerKey(params, all_names, terms.process_set, label)
        self.reducer = ListReducer(tensors, verbs, lambda: params, identity, terms, titles=titles)
        self._count = len(params)
        self._lag = lag
        if lag:
            self.reducer.delay(lag)
        self._lock = threading.Lock()
        self.name = f"{label}.{next(_numbers)}"
        self._again = partial(GraphGradients, like, names, terms, label, lag, titles)

    @cached_property
    def spec(self) -> str:
        """Text in a graph that calls this reduction. From then on, threads of the framework may call at any time."""
        # Graphs refer to the reduction by name, and weakly: its buckets are as large as a model and must be freed with
        # the optimizer. A program that outlives its optimizer gets a new reduction when it runs.
        return provide(self.name, _Revived(weakref.WeakMethod(self._reduce_call), self._again))

    @property
    def is_in_programs(self) -> bool:
        """True after the first use of ``spec``: running programs may call this reduction at any time."""
        return "spec" in vars(self)

    def reduce(
        self,
        gradients: Sequence[npt.NDArray[Any] | None],
        into: Sequence[npt.NDArray[Any]] = (),
        weights: Sequence[npt.NDArray[Any] | None] = (),
    ) -> list[npt.NDArray[Any] | None]:
        """Reduce one list of gradients, and vote with the other ranks to apply it. Collective.

        ``weights``: current values that the gradients will change, or nothing. ``into``: arrays for the results, used
        if that saves a copy; then the returned list contains them.
        """
        with self._lock:
            reduced = self.reducer.reduce(gradients, weights, into)
            assert reduced is not None, "one pass makes a step"
            self.reducer.vote()
            self.reducer.stepped()
            return reduced

    def _reduce_call(self, call: AnyCall) -> None:
        # With a lag, gradients are read after the call, when the framework has reused their memory: copy them.
        gradients, weights = call.inputs[: self._count], call.inputs[self._count :]
        given = [each.copy() for each in gradients] if self._lag else gradients
        targets = [call.output(i, each.shape) for i, each in enumerate(given)]
        results = self.reduce(given, [] if self._lag else targets, weights)
        for target, reduced in zip(targets, results, strict=True):
            assert reduced is not None, "a graph hands in every gradient"
            if reduced is not target:
                np.copyto(target, reduced)


def squared_norm(gradients: GraphGradients, params: Sequence[Any]) -> float:
    """Sum of the squares, in float64, of the reducer's current gradients of ``params``."""
    held = (gradient for gradient in map(gradients.reducer.held, params) if gradient is not None)
    return sum(float(np.vdot(each, each).real) for each in (np.asarray(g, np.float64) for g in held))
