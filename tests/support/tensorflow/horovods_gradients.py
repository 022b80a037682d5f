"""Gradients of collectives under both names, in one job with ``--horovod``: each rank asserts, and prints each case.

Expected is the derivative of the sum, over ranks, of what each makes of its result, times a power of the number of
members: that of ``horovod.tensorflow`` 0.28.1 for one module, none for the other.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import horovod.tensorflow
import horovod.tensorflow as horovods
import numpy as np
import tensorflow as tf

import farandole.tensorflow as derivatives

tf.get_logger().setLevel(logging.ERROR)  # of functions that are traced again

graph: Any = tf.function
GATHERING, SCATTERING = {horovods: -1, derivatives: 0}, {horovods: 1, derivatives: 0}
"""Powers of the number of members."""


def gradients(function: Callable[[Any], Any], x: Any, weight: float) -> Iterator[Any]:
    """Gradients of the weighted sum of what ``function`` returns: eagerly, and in a graph that knows no rows."""

    def run(given: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(given)
            results = function(given)
            loss = tf.add_n([tf.reduce_sum(each) * weight for each in tf.nest.flatten(results)])
        return tape.gradient(loss, given)

    yield run(x)
    yield graph(run, input_signature=[tf.TensorSpec([None, *x.shape[1:]], x.dtype)])(x)


def require(function: Callable[[Any], Any], x: Any, weight: float, expected: Any) -> None:
    """Fail unless all of them are ``expected``, in the dtype of ``x``."""
    for found in gradients(function, x, weight):
        assert found.dtype == x.dtype
        np.testing.assert_allclose(found.numpy(), np.broadcast_to(expected, x.shape), rtol=1e-6)


def gradients_of_what_is_gathered(of: Any, members: list[int], to: dict[str, Any]) -> None:
    """Every rank weighs what it gets by 1 + its number among the members; the sum of all weights is known."""
    n, me = len(members), members.index(derivatives.rank())
    weight, total, by = 1.0 + me, sum(range(1, n + 1)), float(n) ** GATHERING[of]
    rows = tf.ones((2 + me, 3))
    for dtype in (tf.float32, tf.float64):
        require(lambda x: of.allgather(x, **to), tf.cast(rows, dtype), weight, by * total)
    require(lambda x: of.grouped_allgather([x, 2 * x], **to), rows, weight, by * 3 * total)
    for root in members:
        at_root = by * total if derivatives.rank() == root else 0.0
        require(lambda x: of.broadcast(x, root, **to), rows[:2], weight, at_root)  # noqa: B023


def gradients_of_what_is_scattered(of: Any, members: list[int], to: dict[str, Any]) -> None:
    n, me = len(members), members.index(derivatives.rank())
    owners = np.arange(n).repeat(2)[:, None] + 1.0
    rows = tf.ones((2 * n, 3))
    for op, scale in itertools.product((horovods.Sum, horovods.Average), (1.0, 6.0)):
        how = {"op": op, "prescale_factor": scale / 2, "postscale_factor": 2.0, **to}
        share = 1.0 if op == horovods.Sum else 1 / n
        expected = float(n) ** SCATTERING[of] * share * scale * owners
        require(lambda x: of.reducescatter(x, **how), rows, 1.0 + me, expected)  # noqa: B023
        require(lambda x: of.grouped_reducescatter([x, 2 * x], **how), rows, 1.0 + me, 3 * expected)  # noqa: B023


def gradients_that_are_the_same_in_both(of: Any, members: list[int], to: dict[str, Any]) -> None:
    n, me = len(members), members.index(derivatives.rank())
    total = sum(range(1, n + 1))
    require(lambda x: of.allreduce(x, op=horovods.Sum, **to), tf.ones((2, 3)), 1.0 + me, total)
    require(lambda x: of.allreduce(x, op=horovods.Average, **to), tf.ones((2, 3)), 1.0 + me, total / n)
    each = np.arange(1.0, n + 1)[:, None]
    require(lambda x: of.alltoall(x, **to), tf.ones((n, 1)), 1.0 + me, each)


def second_derivatives() -> None:
    """Horovod averages in the backward pass of the backward pass, too."""
    n = derivatives.size()
    for of, by in ((horovods, 1 / n), (derivatives, 1.0)):

        def run(of: Any = of) -> Any:
            x = tf.ones(2)
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    loss = tf.reduce_sum(of.allgather(x) ** 3)
                first = inner.gradient(loss, x)
            return first, outer.gradient(first, x)

        for first, second in (run(), graph(run)()):
            np.testing.assert_allclose(first, [3.0 * n * by] * 2)
            np.testing.assert_allclose(second, [6.0 * n * by**2] * 2)


def arguments_stand_where_horovods_do() -> None:
    """Of the two whose order is not that of the other collectives."""
    for of in (horovods, derivatives):
        one = inspect.signature(of.reducescatter).parameters
        assert list(one)[3:] == [
            "op", "name", "process_set", "ignore_name_scope", "prescale_factor", "postscale_factor",
        ]  # fmt: skip
        several = inspect.signature(of.grouped_reducescatter).parameters
        assert list(several)[3:] == ["op", "process_set", "prescale_factor", "postscale_factor", "name"]


def values_of_integers_in_slices() -> None:
    """Horovod divides, and gets no integers."""
    rank, size = derivatives.rank(), derivatives.size()
    for dtype, horovods_own in (tf.int64, tf.float64), (tf.int32, tf.float64), (tf.int8, tf.float32):
        given = tf.IndexedSlices(tf.constant([[rank + 1]], dtype), tf.constant([rank]))
        mean = horovods.allreduce(given, name="slices")
        assert mean.values.dtype == horovods_own
        np.testing.assert_allclose(mean.values, [[(i + 1) / size] for i in range(size)], rtol=1e-6)
        (ours,) = derivatives.grouped_allreduce([given], name="slices")
        assert ours.values.dtype == dtype
        assert ours.values.numpy().tolist() == [[(i + 1) // size] for i in range(size)]


def names_beside_the_collectives() -> None:
    from horovod.runner.common.util.env import get_env_rank_and_size
    from horovod.tensorflow.util import _executing_eagerly, _has_eager

    assert get_env_rank_and_size() == (derivatives.rank(), derivatives.size())
    assert _has_eager
    assert _executing_eagerly()
    assert not graph(lambda: tf.constant(_executing_eagerly()))()


def it_is_said_once() -> None:
    """By rank 0, with the first gradient that is not the derivative, and with none that is."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("farandole")
    logger.addHandler(handler)
    logger.propagate = False
    require(derivatives.allgather, tf.ones((2, 1)), 1.0, derivatives.size())
    require(horovods.allreduce, tf.ones((2, 1)), 1.0, 1.0)
    assert not said
    for _ in range(2):
        require(horovods.allgather, tf.ones((2, 1)), 1.0, 1.0)
    logger.removeHandler(handler)
    assert len([text for text in said if "as in Horovod 0.28.1" in text]) == (derivatives.rank() == 0), said


def main() -> None:
    """One rank."""
    horovods.init()
    rank, size = horovods.rank(), horovods.size()
    arguments_stand_where_horovods_do()
    it_is_said_once()
    values_of_integers_in_slices()
    names_beside_the_collectives()
    second_derivatives()
    mpi_ops = horovod.tensorflow.mpi_ops
    assert (mpi_ops.allgather, mpi_ops.reducescatter) == (horovods.allgather, horovods.reducescatter)
    some = horovods.add_process_set([0, size - 1])
    for of in (horovods, derivatives):
        for members, to in ((list(range(size)), {}), ([0, size - 1], {"process_set": some})):
            if rank in members:
                gradients_of_what_is_gathered(of, members, to)
                gradients_of_what_is_scattered(of, members, to)
                gradients_that_are_the_same_in_both(of, members, to)
        print(f"rank {rank} of {size}: {of.__name__}", flush=True)
    horovods.shutdown()


if __name__ == "__main__":
    main()
