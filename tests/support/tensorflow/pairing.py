"""Cases of ``on_ranks.py``: gradients and steps that ranks could take for others of the same shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.errors import DivergenceError, MismatchError, UnsupportedError
from tests.support.raising import raises

graph: Any = tf.function


def same(found: Any, expected: Any) -> None:
    """Fail unless they are."""
    np.testing.assert_allclose(tf.convert_to_tensor(found), expected)


def gradients_of_different_variables_are_not_mixed() -> None:
    """A rank has one of two of the same shape, and the other ranks the other: that is no step, in a graph."""
    if hvd.size() == 1:
        return
    a, b = tf.Variable(tf.zeros(3), name="a"), tf.Variable(tf.zeros(3), name="b")

    def step(x: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((b if hvd.rank() else a) * x)
        return list(hvd.DistributedGradientTape(tape).gradient(loss, [a, b]))

    at_a, at_b = step(tf.ones(3) * (hvd.rank() + 1.0))
    same(at_a, [1 / hvd.size()] * 3)
    same(at_b, [sum(r + 1.0 for r in range(1, hvd.size())) / hvd.size()] * 3)
    with raises(MismatchError, "lacks '1.b:0'"):
        graph(step)(tf.ones(3))


def variables_may_be_broadcast_after_the_first_step() -> None:
    """As scripts of TensorFlow 2 do, whose first step makes the variables; what they begin with is compared then."""
    for way in (lambda function: function, graph):
        hvd.shutdown()
        hvd.init(check_divergence="every-step")
        weight = tf.Variable([float(hvd.rank())] * 3)

        def step(x: Any, first: bool, weight: Any = weight) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * x)
            weight.assign_sub(hvd.DistributedGradientTape(tape).gradient(loss, weight))
            if first:
                hvd.broadcast_variables([weight], root_rank=0)

        made: Any = way(step)
        for i in range(4):
            made(tf.ones(3), i == 0)
        same(weight, [-4.0] * 3)
        weight.assign_add(tf.fill([3], float(hvd.rank())))
        if hvd.size() > 1:
            with raises(DivergenceError, "Variable:0' differs at step"):
                for _ in range(2):
                    made(tf.ones(3), False)
    hvd.shutdown()
    hvd.init()


def a_pipeline_has_its_collectives_one_after_the_other() -> None:
    """Elements that are read at the same time would meet in any order."""
    elements = tf.data.Dataset.range(4)
    found = list(elements.map(lambda i: hvd.allreduce(i, op=hvd.Sum)))
    assert [int(each) for each in found] == [i * hvd.size() for i in range(4)]
    with raises(UnsupportedError, "Leave num_parallel_calls away"):
        elements.map(lambda i: hvd.allreduce(i, op=hvd.Sum), num_parallel_calls=2)


def passes_are_those_of_each_variable_and_each_model() -> None:
    """A variable may have no gradient in some of them, and an optimizer several models."""
    a, b = tf.Variable([1.0]), tf.Variable([1.0])
    losses = [lambda: a[0], lambda: a[0] + b[0]]
    plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    one = hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
    for i in range(4):
        one.apply_gradients(one.compute_gradients(losses[i % 2], [a, b]))
    same(a, [-3.0])
    same(b, [-1.0])
    both = hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
    for _ in range(2):
        for variable, factor in ((a, 1.0), (b, 10.0)):
            both.apply_gradients(both.compute_gradients(lambda v=variable, f=factor: v[0] * f, [variable]))
    same(a, [-5.0])
    same(b, [-21.0])


def a_set_may_be_registered_again() -> None:
    """Models go on under it as under the first one."""
    if hvd.size() == 1:
        return
    weight, ranks = tf.Variable([1.0]), range(hvd.size() - 1)
    for _ in range(2):
        some = hvd.add_process_set(ranks)
        if hvd.rank() in ranks:
            with tf.GradientTape() as tape:
                loss = weight[0] * float(hvd.rank())
            same(hvd.DistributedGradientTape(tape, process_set=some).gradient(loss, weight), [np.mean(ranks)])
        hvd.barrier()
        hvd.remove_process_set(some)


CASES: list[Callable[[], None]] = [
    gradients_of_different_variables_are_not_mixed,
    variables_may_be_broadcast_after_the_first_step,
    a_pipeline_has_its_collectives_one_after_the_other,
    passes_are_those_of_each_variable_and_each_model,
    a_set_may_be_registered_again,
]
