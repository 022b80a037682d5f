"""Generated programs of small all-reduces, in graphs and outside, on one rank: ``on_ranks.py PROGRAMS FRAMEWORK...``.

All ranks draw the same program from its number, and each its own delays. Every result is compared with what integers
have in Python. Prints for each how many calls of graphs there were, and how many of them have met without Python.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

import farandole.numpy as hvd
from farandole import events
from farandole.errors import MismatchError, UnsupportedError
from tests.support.raising import raises

Reduce: TypeAlias = Callable[[Any], Any]
"""Sum of what all ranks give, an array of float32, under a name, out of a compiled graph."""

STEPS = 400
NAMES = "abc"
TO_REFUSE = 10


def in_jax(name: str) -> Reduce:
    """A program of JAX."""
    import jax

    import farandole.jax

    program = jax.jit(lambda x: farandole.jax.allreduce(x, name=name, op=hvd.Sum))
    return lambda x: np.asarray(program(x))


def in_tensorflow(name: str) -> Reduce:
    """A graph of TensorFlow."""
    import tensorflow as tf

    import farandole.tensorflow

    def reduce(x: Any) -> Any:
        return farandole.tensorflow.allreduce(x, name=name, op=hvd.Sum)

    graph: Any = tf.function(reduce, reduce_retracing=False)
    return lambda x: graph(tf.constant(x)).numpy()


FRAMEWORKS = {"jax": in_jax, "tensorflow": in_tensorflow}


class Program:
    """One rank's way through the program."""

    def __init__(self, seed: int, frameworks: list[str]) -> None:
        self.rank, self.size = hvd.rank(), hvd.size()
        self.shared, self.own = random.Random(seed), random.Random(f"{seed} {self.rank}")
        self.to_refuse = [f"refused {seed} {i}" for i in range(TO_REFUSE)]
        names = *NAMES, *self.to_refuse, "joined"
        self.made = {framework: {name: FRAMEWORKS[framework](name) for name in names} for framework in frameworks}
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        """All steps: mostly calls of a graph, and now and then something else."""
        kinds = [self.in_graph] * 50 + [self.outside] * 3 + [self.of_two, self.watched]
        for step in range(STEPS):
            for _ in range(self.own.choice((0, 0, 0, 0, 3_000))):  # as fast as the others, or later than they wait
                pass
            self.shared.choice(kinds)(step)
        self.refused()
        self.joined()

    def reduce(self, reduce: Reduce, step: int, count: int = 1) -> None:
        """Reduce as many numbers, and compare."""
        values = [np.arange(1, count + 1, dtype=np.float32) * (step + 1) * (rank + 1) for rank in range(self.size)]
        np.testing.assert_array_equal(reduce(values[self.rank]), sum(values))

    def graph(self, name: str = "") -> Reduce:
        """A graph of any framework, under any of the names."""
        self.done["in graphs"] += 1
        return self.made[self.shared.choice(list(self.made))][name or self.shared.choice(NAMES)]

    def in_graph(self, step: int) -> None:
        """A call of a graph."""
        self.reduce(self.graph(), step)

    def of_two(self, step: int) -> None:
        """A call of a graph with another shape."""
        self.reduce(self.graph(), step, count=2)

    def outside(self, step: int) -> None:
        """A call outside of graphs, under a name that graphs use."""
        name = self.shared.choice(NAMES)
        self.reduce(lambda x: hvd.allreduce(x, name=name, op=hvd.Sum), step)

    def watched(self, step: int) -> None:
        """Calls of graphs while somebody subscribes to events on this rank, or on the others."""
        seen: list[Any] = []
        if watches := self.rank == step % self.size:
            cancel = events.subscribe(seen.append)
        name = self.shared.choice(NAMES)
        for i in range(5):
            self.reduce(self.graph(name), step + i)
        if watches:
            cancel()
            phases = [e for e in seen if isinstance(e, events.Phase) and e.name == f"allreduce.{name}"]
            assert phases, "nothing was told"

    def refused(self) -> None:
        """One rank cannot take part, which all are told; the calls after that meet those after that."""
        for turn, name in enumerate(self.to_refuse):
            for step in range(10):
                self.reduce(self.graph(name), step)
            if self.rank == turn % self.size:
                with raises(UnsupportedError, "op=Max of a complex64"):
                    hvd.allreduce(np.ones(1, np.complex64), name=name, op=hvd.Max)
            else:
                with raises(MismatchError, "op=Max of a complex64"):
                    self.reduce(self.graph(name), 99)
            for step in range(3):
                self.reduce(self.graph(name), 100 + step)

    def joined(self) -> None:
        """Ranks that run out of batches take part with nothing, until all have."""
        reduce = next(iter(self.made.values()))["joined"]
        for turn in range(3):
            for step in range(10 + 10 * self.rank):
                there = [rank for rank in range(self.size) if step < 10 + 10 * rank]
                found = reduce(np.array([self.rank + step + turn], np.float32))
                assert found == sum(rank + step + turn for rank in there), (turn, step)
            assert hvd.join() == self.size - 1


def main() -> None:
    """One rank."""
    hvd.init()
    for seed in range(int(sys.argv[1])):
        before = hvd.statistics()["fast_path"]["met"]
        program = Program(seed, sys.argv[2:])
        program.run()
        if hvd.rank() == 0:
            print(program.done["in graphs"], hvd.statistics()["fast_path"]["met"] - before, flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
