"""What every rank finds of tensors on a second device: ``python devices.py`` prints each case that passed.

The second device of the CPU stands for a GPU: eager results must be back on it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.adapters.tensorflow import adapter

_two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], _two)

HERE, AWAY = (f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))


def away(values: Any, dtype: Any = tf.float32) -> Any:
    """Tensor on the second device."""
    with tf.device(AWAY):
        return tf.identity(tf.constant(values, dtype))


def like(found: Any, given: Any, expected: Any) -> None:
    """Fail unless the tensor is where the other is, with its dtype and these values."""
    assert (found.device, found.dtype) == (given.device, given.dtype)
    np.testing.assert_array_equal(tf.cast(found, tf.float64).numpy(), expected)


def results_are_where_the_tensors_are() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype in (tf.float32, tf.bfloat16, tf.int32, tf.float16):
        base = np.arange(2.0 * size)
        x, every = away(base + rank, dtype), [base + r for r in range(size)]
        y = tf.identity(tf.constant(base + rank, dtype))
        assert (x.device, y.device) == (AWAY, HERE)
        verbs: list[tuple[Callable[..., Any], Callable[..., Any], dict[str, Any], Any]] = [
            (hvd.allreduce, hvd.allreduce_async, {"op": hvd.Sum}, sum(every)),
            (hvd.broadcast, hvd.broadcast_async, {"root_rank": size - 1}, every[-1]),
            (hvd.allgather, hvd.allgather_async, {}, np.concatenate(every)),
            (hvd.alltoall, hvd.alltoall_async, {}, np.concatenate([np.split(each, size)[rank] for each in every])),
            (hvd.reducescatter, hvd.reducescatter_async, {"op": hvd.Sum}, np.split(sum(every), size)[rank]),
        ]
        for function, begin, named, expected in verbs:
            for given in (x, y):
                like(function(given, **named), given, expected)
                like(hvd.synchronize(begin(given, **named)), given, expected)
        pair = hvd.grouped_allreduce([x, y], op=hvd.Sum)
        like(pair[0], x, sum(every))
        like(pair[1], y, sum(every))


def memory_for_engines_is_where_they_write_to_it() -> None:
    """Also where the default device is another one, as a GPU is."""
    for dtype in (tf.float32, tf.bfloat16):
        for shape in ([], [3]):
            with tf.device(AWAY):
                x = tf.fill(shape, tf.cast(hvd.rank() + 1, dtype))
                made = adapter.clone(x)
                found = hvd.allreduce(x, op=hvd.Sum)
            assert made.device == HERE
            memory = adapter.array(made)
            ctypes.memset(memory.address, 0, memory.nbytes)
            like(tf.identity(made), made, np.zeros(shape))
            like(found, x, np.full(shape, hvd.size() * (hvd.size() + 1) / 2))


def variables_stay_where_they_are() -> None:
    with tf.device(AWAY):
        variable = tf.Variable([1.0 + hvd.rank()] * 3)
    hvd.broadcast_variables([variable], 0)
    like(variable, away([1.0]), [1.0] * 3)
    hvd.broadcast_(variable.assign([2.0 + hvd.rank()] * 3), 0)
    like(variable, away([1.0]), [2.0] * 3)
    like(hvd.synchronize(hvd.allreduce_async(variable)), away([1.0]), [2.0] * 3)


class TapeOnDevice:
    """Tape whose gradients are on the second device, as those of a GPU's variables are on it."""

    def __init__(self, tape: Any) -> None:
        self._tape = tape

    def gradient(self, *given: Any) -> Any:
        """Gradients of the tape."""
        with tf.device(AWAY):
            return [None if each is None else tf.identity(each) for each in self._tape.gradient(*given)]


def gradients_are_where_they_were() -> None:
    """With one that this rank lacks, and one that is too large for a bucket; under a tape that records, too."""
    rank, size = hvd.rank(), hvd.size()
    with tf.device(AWAY):
        variables = [tf.Variable(tf.ones(shape)) for shape in ([3], [1500, 1000], [2])]
    for recorder in (contextlib.nullcontext(), tf.GradientTape()):
        with recorder, tf.GradientTape() as tape:
            used = variables if rank == 0 else variables[:2]
            loss = tf.add_n([tf.nn.l2_loss(variable) for variable in used]) * (rank + 1.0)
            found = hvd.DistributedGradientTape(TapeOnDevice(tape)).gradient(loss, variables)
        for gradient, expected in zip(found, ((size + 1) / 2, (size + 1) / 2, 1 / size), strict=True):
            like(gradient, away([1.0]), np.full(gradient.shape, expected))
    x = away([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Sum) * (rank + 1.0)
    found = tape.gradient(y, x)
    np.testing.assert_array_equal(found, [size * (size + 1) / 2] * 2)


def functions_reduce_what_a_device_has_and_give_it_back() -> None:
    """TensorFlow copies between the devices of a graph."""
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) / 2

    def compute(x: Any) -> Any:
        with tf.device(AWAY):
            y = x * 2
        reduced = hvd.allreduce(y, op=hvd.Sum)
        with tf.device(AWAY):
            return reduced + 1

    graph = tf.function(compute).get_concrete_function(tf.TensorSpec([2]))
    assert {op.device for op in graph.graph.get_operations() if op.type == "FarandoleCall"} <= {"/device:CPU:0"}
    np.testing.assert_array_equal(graph(away([1.0 + rank] * 2)), [2 * total + 1] * 2)


if __name__ == "__main__":
    hvd.init()
    for case in (
        results_are_where_the_tensors_are,
        memory_for_engines_is_where_they_write_to_it,
        variables_stay_where_they_are,
        gradients_are_where_they_were,
        functions_reduce_what_a_device_has_and_give_it_back,
    ):
        case()
        if hvd.rank() == 0:
            print(case.__name__, flush=True)
    hvd.shutdown()
