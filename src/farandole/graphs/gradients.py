"""Gradients of a compiled graph: handed in as one call, reduced as those of any framework, and handed back.

    reduction = GraphGradients(shapes, names, Terms(how), "jax")
    reduction.spec                      # of a graph's call, with all gradients in and as many out
    reduction.reduce(arrays)            # the same outside of a graph

Order, buckets, the vote and the check for divergence are those of ``ListReducer``.

Threads. Calls come in threads of ``graphs/calls``, and eager ones in the script's; ``GraphGradients._lock`` is held for
a whole step, its collectives included, as the reducer serves one thread. It settles no order: two calls that wait for
it could come in another one on another rank, and steps would be mixed up. They do not wait, as the framework begins a
run when the one before it is over (``jax/programs``), and a script that trains one model in two threads is wrong on any
engine. ``_Revived._lock`` is held for moments: two runs of a program may find at once that the reduction is gone, and
must both get the same new one; it is given back before the collective, for which the next run must not wait.
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
    """Function of the reduction that ``run`` belongs to, or once that is gone, of the one that ``again`` makes."""

    def __init__(self, run: Callable[[], Function | None], again: Callable[[], GraphGradients]) -> None:
        self._run, self._again = run, again
        self._lock = threading.Lock()  # two runs of a program may find that it is gone

    def __call__(self, call: AnyCall) -> None:
        with self._lock:
            run = self._run()
            if run is None:
                run = self._again()._run
                self._run = partial(_same, run)
        run(call)


def _same(run: Function) -> Function:
    return run


@final
class GraphGradients:
    """Reduction of gradients with the shapes and dtypes of ``like``; ``label`` says whose they are.

    With ``lag``, gradients are those of so many calls ago, and zeros in the beginning. ``titles`` are what errors call
    the parameters where ``names`` is ``None``.

    Where a call hands in as many weights after the gradients, ranks compare them now and then, before they are changed:
    ``DivergenceError`` on every rank if they differ. They are only read, where they lie.
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
        """Text in a graph that calls this: from then on, threads of its framework may come at any time."""
        # Graphs refer to it by name alone, and buckets are as large as a model: those of an optimizer that is gone must
        # not be kept. A program that outlives its optimizer is given others when it runs.
        return provide(self.name, _Revived(weakref.WeakMethod(self._run), self._again))

    @property
    def is_in_programs(self) -> bool:
        """True once ``spec`` was asked for: programs that run now may be about to reduce by it."""
        return "spec" in vars(self)

    def reduce(
        self,
        gradients: Sequence[npt.NDArray[Any] | None],
        into: Sequence[npt.NDArray[Any]] = (),
        weights: Sequence[npt.NDArray[Any] | None] = (),
    ) -> list[npt.NDArray[Any] | None]:
        """Reduce one list of gradients, and agree with the other ranks that it may be applied. Collective.

        ``weights``: what the gradients are about to change, as it is now, or nothing. ``into``: arrays that the results
        are written to where that saves a copy; which ones is told by what comes back.
        """
        with self._lock:
            reduced = self.reducer.reduce(gradients, weights, into)
            assert reduced is not None, "one pass makes a step"
            self.reducer.vote()
            self.reducer.stepped()
            return reduced

    def _run(self, call: AnyCall) -> None:
        # What lags is read when the call is over, and the framework has other values in that memory.
        gradients, weights = call.inputs[: self._count], call.inputs[self._count :]
        given = [each.copy() for each in gradients] if self._lag else gradients
        targets = [call.output(i, each.shape) for i, each in enumerate(given)]
        results = self.reduce(given, [] if self._lag else targets, weights)
        for target, reduced in zip(targets, results, strict=True):
            assert reduced is not None, "a graph hands in every gradient"
            if reduced is not target:
                np.copyto(target, reduced)


def squared_norm(gradients: GraphGradients, params: Sequence[Any]) -> float:
    """Sum of the squares, in float64, of the gradients that the reduction holds of ``params``."""
    held = (gradient for gradient in map(gradients.reducer.held, params) if gradient is not None)
    return sum(float(np.vdot(each, each).real) for each in (np.asarray(g, np.float64) for g in held))
