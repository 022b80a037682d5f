"""Graphs and sessions of ``tf.compat.v1`` where eager execution is off: ``python sessions.py`` prints each case.

A process of its own, as eager execution cannot be had back. ``--slowly``: without the native operation.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import farandole.tensorflow as hvd
from farandole.tensorflow.graph import native

tf.disable_eager_execution()

DATA = np.random.default_rng(1).normal(size=(24, 12, 5)).astype(np.float32)
START = np.random.default_rng(2).normal(size=(5, 1)).astype(np.float32)
RATE = 0.1


def gradient_of(x: Any, weight: Any) -> Any:
    """The gradient of the mean square of what a linear layer makes of ``x``, in NumPy."""
    return 2 * x.T @ (x @ weight) / len(x)


def trained(passes: int, averages: bool, hooks: list[Any]) -> Any:
    """The weight after one pass for each batch of ``DATA``, of which each rank has a share."""
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 5])
        weight = tf.get_variable("weight", initializer=START + hvd.rank())
        optimizer = tf.train.GradientDescentOptimizer(RATE)
        optimizer = hvd.DistributedOptimizer(
            optimizer, backward_passes_per_step=passes, average_aggregated_gradients=averages
        )
        train = optimizer.minimize(tf.reduce_mean(tf.square(x @ weight)), global_step=tf.train.create_global_step())
        with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
            for batch in DATA:
                session.run(train, {x: batch[hvd.rank() :: hvd.size()]})
            found = session.run(weight)
    return found


def a_hook_broadcasts_beside_what_has_to_be_fed() -> None:
    """The broadcast is put into the graph after the gradients, and runs before there is a batch."""
    expected = START
    for batch in DATA:
        expected = expected - RATE * gradient_of(batch, expected)
    np.testing.assert_allclose(trained(1, False, [hvd.BroadcastGlobalVariablesHook(0)]), expected, rtol=1e-3)


def an_optimizer_steps_with_the_gradients_of_three_passes() -> None:
    for averages in (False, True):
        expected = START
        for first in range(0, len(DATA), 3):
            each = [gradient_of(batch, expected) for batch in DATA[first : first + 3]]
            expected = expected - RATE * sum(each) / (3 if averages else 1)
        found = trained(3, averages, [hvd.BroadcastGlobalVariablesHook(0)])
        np.testing.assert_allclose(found, expected, rtol=1e-3)
        assert all(np.array_equal(found, other) for other in hvd.allgather_object(found))


def an_accumulation_begins_anew_after_shutdown_and_init() -> None:
    with tf.Graph().as_default():
        given = tf.placeholder(tf.float32, ())
        weight = tf.get_variable("weight", initializer=0.0)
        optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
        train = optimizer.minimize(weight * given)
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(train, {given: 100.0})
            hvd.shutdown()
            hvd.init()
            session.run(train, {given: 2.0})
            assert session.run(weight) == 0.0
            session.run(train, {given: 3.0})
            assert session.run(weight) == -5.0


def collectives_of_a_session() -> None:
    """Several at once, of which a run needs some, and the same ones again."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [2])
        sums = [hvd.allreduce(x * i, op=hvd.Sum) for i in range(6)]
        gathered = hvd.allgather(x[None], name="rows")
        total = sum(range(1, hvd.size() + 1))
        for _ in range(20):
            for chosen in ([0, 1, 2, 3, 4, 5], [2, 4]):
                found = session.run([sums[i] for i in chosen], {x: [hvd.rank() + 1.0] * 2})
                assert [each.tolist() for each in found] == [[i * total] * 2 for i in chosen]
        assert session.run(gathered, {x: [hvd.rank(), 0]})[:, 0].tolist() == list(range(hvd.size()))


def a_broadcast_in_place_changes_variables_and_gives_their_values() -> None:
    for by_reference in (False, True):
        with tf.Graph().as_default(), tf.Session() as session:
            variables = [
                tf.get_variable(
                    name, initializer=tf.ones([3], tf.float32) * (hvd.rank() + i), use_resource=not by_reference
                )
                for i, name in enumerate("ab")
            ]
            one = tf.get_variable("c", initializer=float(hvd.rank()), use_resource=not by_reference)
            copied = [*hvd.broadcast_(variables, hvd.size() - 1), hvd.broadcast_(one, 0)]
            session.run(tf.global_variables_initializer())
            for found in (session.run(copied), session.run([*variables, one])):
                assert [np.ravel(each)[0] for each in found] == [hvd.size() - 1, hvd.size(), 0.0]


CASES = [
    a_broadcast_in_place_changes_variables_and_gives_their_values,
    a_hook_broadcasts_beside_what_has_to_be_fed,
    an_optimizer_steps_with_the_gradients_of_three_passes,
    an_accumulation_begins_anew_after_shutdown_and_init,
    collectives_of_a_session,
]


def main() -> None:
    """One rank."""
    hvd.init()
    if "--slowly" in sys.argv:
        native().module, native().why = None, "this test says so"
    for each in CASES:
        each()
        if hvd.rank() == 0:
            print(each.__name__, flush=True)
    assert native().module or "--slowly" in sys.argv, native().why
    hvd.shutdown()


if __name__ == "__main__":
    main()
