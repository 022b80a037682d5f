"""What every rank of one job finds of ``farandole.tensorflow``: ``python on_ranks.py`` prints each case that passed.

TensorFlow takes seconds to import, so one job runs all of them. Small thread pools: what needs more would hang.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.graphs import calls
from farandole.tensorflow.graph import native
from tests.support.bindings.tensorflow_under_test import TensorFlowUnderTest
from tests.support.raising import raises
from tests.support.tensorflow import pairing
from workbench.binding.contract import run_contract

tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(1)

Case = Callable[[], None]
graph: Any = tf.function
CASES: list[Case] = []


def case(function: Case) -> Case:
    """Run this one, too."""
    CASES.append(function)
    return function


def both_ways(function: Callable[[], Any]) -> Iterator[Any]:
    """What a function returns eagerly, and as a graph."""
    yield function()
    yield graph(function)()


def mine(*shape: int) -> Any:
    """Values that differ by rank."""
    return tf.ones(shape) * (hvd.rank() + 1.0)


EIGHT_BITS = (tf.dtypes.experimental.float8_e5m2, tf.dtypes.experimental.float8_e4m3fn)


@case
def verbs_of_a_graph_are_those_of_eager_tensors() -> None:
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(1, size + 1))
    for found in both_ways(lambda: hvd.allreduce(mine(2), op=hvd.Sum)):
        assert found.numpy().tolist() == [total] * 2
    for found in both_ways(lambda: hvd.allreduce(mine(2), op=hvd.Max, prescale_factor=2.0, name="max")):
        assert found.numpy().tolist() == [2 * size] * 2
    for pair in both_ways(lambda: hvd.grouped_allreduce([mine(2), tf.constant(rank)], op=hvd.Sum)):
        assert [each.numpy().tolist() for each in pair] == [[total] * 2, total - size]
    for found in both_ways(lambda: hvd.allgather(tf.fill([rank + 1, 2], rank))):
        assert found.numpy()[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]
    for found in both_ways(lambda: hvd.allgather(rank)):
        assert found.numpy().tolist() == list(range(size))
    for found in both_ways(lambda: hvd.broadcast(mine(2), size - 1)):
        assert found.numpy().tolist() == [size] * 2


@case
def more_verbs_of_a_graph() -> None:
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(1, size + 1))
    for found in both_ways(lambda: hvd.reducescatter(mine(2 * size + 1), op=hvd.Sum)):
        assert found.numpy().tolist() == [total] * (3 if rank == 0 else 2)
    for found in both_ways(lambda: hvd.alltoall(tf.range(size))):
        assert found.numpy().tolist() == [rank] * size
    for rows, counts in both_ways(lambda: hvd.alltoall(tf.range(2 * size), splits=tf.fill([size], 2))):
        assert rows.numpy().tolist() == [2 * rank, 2 * rank + 1] * size
        assert counts.numpy().tolist() == [2] * size
    for half in both_ways(lambda: hvd.allreduce(tf.cast(mine(3), tf.bfloat16), op=hvd.Sum)):
        assert tf.cast(half, tf.float32).numpy().tolist() == [total] * 3
    for found in both_ways(lambda: hvd.allreduce(mine(2), compression=hvd.Compression.fp16, op=hvd.Sum)):
        assert (found.dtype, found.numpy().tolist()) == (tf.float32, [total] * 2)
    for found in both_ways(lambda: [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.process_set_included_op()]):
        assert [int(each) for each in found] == [rank, size, hvd.local_rank(), 1]
    slices = tf.IndexedSlices(mine(1, 2), tf.constant([rank]), tf.constant([size, 2]))
    for found in both_ways(lambda: hvd.allreduce(slices, op=hvd.Sum)):
        assert tf.convert_to_tensor(found).numpy()[:, 0].tolist() == list(range(1, size + 1))


@case
def gradients_are_those_of_the_sum_of_all_losses() -> None:
    rank, size = hvd.rank(), hvd.size()

    def of(function: Callable[[Any], Any], x: Any) -> Any:
        def run() -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
                loss = tf.reduce_sum(tf.square(y) * (rank + 1.0))
            return tape.gradient(loss, x)

        return list(both_ways(run))

    total = sum(range(1, size + 1))
    for found in of(lambda x: hvd.allreduce(x, op=hvd.Sum), mine(2)):
        assert np.allclose(found, 2 * total * total)
    for found in of(hvd.allgather, mine(rank + 1, 2)):
        assert np.allclose(found, 2 * total * (rank + 1))
    for found in of(lambda x: hvd.broadcast(x, 0), mine(2)):
        assert np.allclose(found, 2 * total if rank == 0 else 0)
    for found in of(lambda x: hvd.reducescatter(x, op=hvd.Sum), mine(size, 2)):
        assert np.allclose(found[:, 0], [2 * total * (r + 1) for r in range(size)])
    for found in of(hvd.alltoall, mine(size)):
        assert np.allclose(found, [2 * (rank + 1) * (r + 1) for r in range(size)])


@case
def independent_collectives_of_a_graph_are_matched_by_name() -> None:
    """Six of one shape at once, on two threads, for some hundred steps; each result tells which call it is of."""

    @graph
    def step(xs: list[Any]) -> list[Any]:
        return [hvd.allreduce(x @ x * 0 + x, name=f"g{i}") for i, x in enumerate(xs)]

    xs = [tf.fill((64, 64), float(i + 10 * hvd.rank())) for i in range(6)]
    for _ in range(200):
        for i, y in enumerate(step(xs)):
            assert float(y[3, 3]) == i + 5 * (hvd.size() - 1)


@case
def calls_of_one_name_keep_their_order() -> None:
    """In a loop whose iterations are independent, and where one function is called twice."""

    @graph
    def inner(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    @graph
    def outer(slow: Any) -> Any:
        first = inner(tf.reduce_sum(slow @ slow) * 0 + 1.0) if hvd.rank() == 0 else inner(tf.constant(1.0))
        second = inner(tf.constant(2.0)) if hvd.rank() == 0 else inner(tf.reduce_sum(slow @ slow) * 0 + 2.0)
        results = tf.TensorArray(tf.float32, 20)
        for i in tf.range(20):
            results = results.write(i, hvd.allreduce(tf.cast(i, tf.float32), op=hvd.Sum, name="in a loop"))
        return first, second, results.stack()

    for _ in range(10):
        first, second, loop = outer(tf.zeros((300, 300)))
        assert (float(first), float(second)) == (hvd.size(), 2 * hvd.size())
        assert loop.numpy().tolist() == [i * hvd.size() for i in range(20)]


@case
def a_call_is_neither_folded_nor_dropped() -> None:
    """Constants as inputs, and a result that only one rank uses."""

    @graph
    def constant() -> Any:
        return hvd.allreduce(tf.ones(3), op=hvd.Sum, name="constant")

    @graph
    def unused(x: Any) -> Any:
        y = hvd.allreduce(x, op=hvd.Sum, name="unused")
        return y if hvd.rank() == 0 else x

    for _ in range(5):
        assert constant().numpy().tolist() == [hvd.size()] * 3
        assert unused(tf.constant(1.0)) == (hvd.size() if hvd.rank() == 0 else 1)


@case
def a_result_lies_in_its_inputs_memory_only_where_nobody_else_reads_that() -> None:
    weights, others = tf.Variable(tf.ones((700, 600))), tf.Variable(tf.zeros((700, 600)))
    total = hvd.size() * (hvd.size() + 1) / 2

    @graph
    def step(x: Any) -> tuple[Any, ...]:
        own, read = x * 2.0, x + 1.0
        reduced = [
            hvd.allreduce(each, op=hvd.Sum, name=f"{i} of four") for i, each in enumerate((own, read, weights, x))
        ]
        pair = hvd.grouped_allreduce([x + 2.0, read], op=hvd.Sum, name="pair")
        return *reduced, *pair, read, weights.read_value()

    @graph
    def trained(x: Any) -> tuple[Any, ...]:
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            loss = tf.reduce_sum((weights + others) * x)  # both have one tensor as their gradient
        return *tape.gradient(loss, [weights, others]), loss

    x, n = mine(700, 600), hvd.size()
    for _ in range(3):
        found = [set(each.numpy().ravel().tolist()) for each in step(x)]
        sums = [2 * total, total + n, n, total, total + 2 * n, total + n]
        assert found == [{each} for each in (*sums, hvd.rank() + 2, 1)]
        *gradients, loss = trained(x)
        assert [set(each.numpy().ravel().tolist()) for each in gradients] == [{total}] * 2
        assert abs(float(loss) / (420_000 * (hvd.rank() + 1)) - 1) < 1e-5
        assert set(x.numpy().ravel().tolist()) == {hvd.rank() + 1}
        assert set(weights.numpy().ravel().tolist()) == {1}


@case
def a_function_may_be_traced_again_on_one_rank() -> None:
    @graph
    def step(x: Any) -> Any:
        return hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum)

    for length in (2, 2, 3 + hvd.rank(), 2):
        step(tf.ones(length))
    assert float(step(tf.ones(1))) == hvd.size()


@case
def errors_are_found_in_what_tensorflow_makes_of_them() -> None:
    if hvd.size() > 1:
        with raises(hvd.HorovodInternalError, "shape"):
            graph(lambda: hvd.allreduce(tf.ones(2 + hvd.rank()), name="differs"))()
    assert float(graph(lambda: hvd.allreduce(1.0, name="differs"))()) == 1.0
    with raises(ValueError, "jit_compile=True"):
        graph(lambda: hvd.allreduce(tf.ones(2)), jit_compile=True)()
    with raises(ValueError, "root_rank=99"):
        graph(lambda: hvd.broadcast(tf.ones(2), 99))()
    ragged, sparse = tf.ragged.constant([[1.0, 2.0], [3.0]]), tf.sparse.from_dense([[1.0, 0.0]])
    for verb in (hvd.allreduce, hvd.allgather, lambda x: hvd.broadcast(x, 0), lambda x: hvd.grouped_allreduce([x])):
        for wrong, text in ((ragged, r"pass .to_tensor() of it"), (sparse, r"pass tf.sparse.to_dense() of it")):
            with raises(ValueError, text):
                verb(wrong)


@case
def a_tape_and_its_gradients() -> None:
    """Training on shares of a batch is training on all of it; ranks end with the same bits."""
    data, rank, size = np.random.default_rng(1), hvd.rank(), hvd.size()
    xs = data.normal(size=(100, 12, 5))
    start = [data.normal(size=shape) for shape in ((5, 8), (8,), (8, 1))]

    def trained(optimizer: Any, share: slice, tape_of: Callable[[Any], Any], eager: bool) -> list[Any]:
        weights = [tf.Variable(each) for each in start]
        optimizer.build(weights)

        def step(x: Any) -> None:
            with tf.GradientTape() as tape:
                hidden = tf.nn.tanh(x @ weights[0] + weights[1])
                loss = tf.reduce_mean(tf.square(hidden @ weights[2] - x[:, :1]))
            gradients = tape_of(tape).gradient(loss, weights)
            optimizer.apply_gradients(zip(gradients, weights, strict=True))

        compiled = step if eager else graph(step)
        for x in xs:
            compiled(tf.constant(x[share]))
        return [weight.numpy() for weight in weights]

    mine = slice(rank, None, size) if 12 % size == 0 else slice(None)
    for make in (lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9), lambda: tf.keras.optimizers.Adam(0.01)):
        alone = trained(make(), slice(None), lambda tape: tape, eager=False)
        for eager in (False, True):
            found = trained(make(), mine, hvd.DistributedGradientTape, eager)
            for one, other in zip(found, alone, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6)
            for others in hvd.allgather_object(found):
                assert all(np.array_equal(one, other) for one, other in zip(found, others, strict=True))


@case
def a_tape_can_be_differentiated() -> None:
    """By a tape around it; some gradients may be missing, and outside of graphs those of one rank alone."""
    scale, values = hvd.rank() + 1.0, np.arange(3.0)
    watched, other, unused = tf.Variable(values), tf.Variable(values), tf.Variable(values)

    def second(has_other: bool) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(scale * watched**3 + (watched * other if has_other else 0.0))
            gradients = hvd.DistributedGradientTape(inner).gradient(loss, [watched, other, unused])
            assert gradients[2] is None
            total = loss + tf.add_n([tf.reduce_sum(each**2) for each in gradients if each is not None])
        return outer.gradient(total, watched)

    of_all, own = 3 * (hvd.size() + 1) / 2 * values**2, 3 * scale * values**2
    for found in both_ways(lambda: second(has_other=False)):
        np.testing.assert_allclose(found, own + 2 * of_all * 6 * scale * values)
    only = values / hvd.size()
    expected = own + 2 * (of_all + only) * 6 * scale * values + (values + 2 * only if hvd.rank() == 0 else 0)
    np.testing.assert_allclose(second(has_other=hvd.rank() == 0), expected)


@case
def sparse_and_local_gradients() -> None:
    rank, size = hvd.rank(), hvd.size()
    table, local = tf.Variable(tf.ones((6, 2))), tf.Variable([1.0])

    def run(**options: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank, 0])) + (rank + 1.0) * tf.reduce_sum(local)
        tape = hvd.DistributedGradientTape(tape, **options)
        tape.register_local_source(local)
        return tape.gradient(loss, [table, local])

    dense = np.zeros((6, 2), np.float32)
    for other in range(size):
        dense[[0, other]] += 1 / size
    dense[0] += 1 / size  # rank 0 has that row twice
    for sparse in (False, True):
        for found, own in both_ways(lambda: run(sparse_as_dense=sparse)):  # noqa: B023
            assert isinstance(found, tf.IndexedSlices) is not sparse
            np.testing.assert_allclose(tf.convert_to_tensor(found), dense, rtol=1e-6)
            np.testing.assert_allclose(own, [(rank + 1.0) / size])


@case
def slices_in_a_group_and_of_integers_are_gathered() -> None:
    rank, size = hvd.rank(), hvd.size()
    values = tf.constant([[2 * rank + 1, 3]], tf.int64)

    def grouped() -> Any:
        rows = tf.IndexedSlices(tf.cast(values, tf.float32), tf.constant([rank]))  # without dense_shape
        dense, found = hvd.grouped_allreduce([mine(2), rows], op=hvd.Sum, name="mixed")
        (alone,) = hvd.grouped_allreduce([rows], name="alone")
        return dense, found.values, found.indices, alone.values

    expected = [[2.0 * i + 1, 3.0] for i in range(size)]
    for run in (grouped, graph(grouped)):
        dense, gathered, indices, average = (each.numpy().tolist() for each in run())
        assert dense == [size * (size + 1) / 2] * 2
        assert (gathered, indices) == (expected, list(range(size)))
        np.testing.assert_allclose(average, np.array(expected) / size, rtol=1e-6)
    integers = hvd.allreduce(tf.IndexedSlices(values, tf.constant([rank])), name="integers")
    assert integers.values.dtype == tf.int64
    assert integers.values.numpy().tolist() == [[int(value / size) for value in row] for row in expected]


@case
def what_ranks_disagree_about_has_horovods_code_in_a_graph() -> None:
    step = graph(lambda: hvd.allreduce(tf.ones(2 + hvd.rank()), name="unlike"))
    if hvd.size() > 1 and native().module:
        with pytest.raises(tf.errors.FailedPreconditionError, match="unlike"):
            step()


@case
def variables_are_those_of_the_root() -> None:
    generator = tf.Variable(tf.constant([hvd.rank()], tf.uint32))
    weight, whole = tf.Variable(mine(3)), tf.Variable(hvd.rank())
    hvd.broadcast_variables([weight, whole, generator], root_rank=hvd.size() - 1)
    assert weight.numpy().tolist() == [hvd.size()] * 3
    assert (int(whole), int(generator[0])) == (hvd.size() - 1,) * 2
    weight.assign(mine(3))
    graph(lambda: hvd.broadcast_variables([weight], root_rank=0))()
    assert weight.numpy().tolist() == [1.0] * 3
    masks = tf.keras.layers.Dropout(0.5, seed=hvd.rank() + 1)
    masks(tf.ones((1, 2)), training=True)
    hvd.broadcast_variables(masks.variables, root_rank=0)
    assert int(masks.variables[0][0]) == hvd.rank() + 1, "all ranks drop out the same units"
    share = hvd.broadcast_object_fn(root_rank=0)
    assert share(hvd.rank()) == 0


@case
def sets_that_are_not_registered_and_ranks_without_variables_are_told() -> None:
    unknown, weight = hvd.ProcessSet([0]), tf.Variable([1.0])

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = 2.0 * weight
        return hvd.DistributedGradientTape(tape, process_set=unknown).gradient(loss, [weight])

    for run in (gradient, graph(gradient)):
        with raises(ValueError, "is not registered in this job"):
            run()
    with raises(ValueError, "is not registered in this job"):
        hvd.SyncBatchNormalization(process_set=unknown)(tf.ones((2, 3)), training=True)
    if hvd.size() > 1:
        with raises(hvd.HorovodInternalError, "broadcast"):
            hvd.broadcast_variables([weight] if hvd.rank() else [], root_rank=0)
    hvd.broadcast_variables([], root_rank=0)


@case
def batches_of_all_ranks_are_normalised_together() -> None:
    whole = np.random.default_rng(3).normal(2, 3, (12, 4)).astype(np.float32)
    layer, plain = hvd.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()
    own = np.array_split(np.arange(12), [1 + 2 * r for r in range(hvd.size() - 1)])[hvd.rank()]

    def run(norm: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x, training=True)
            loss = tf.reduce_sum(y * y * y)
        return y, tape.gradient(loss, x)

    layer.build((None, 4))
    for function in (run, graph(run)):
        y, gradient = function(layer, tf.constant(whole[own]))
        expected, gradients = run(plain, tf.constant(whole))
        np.testing.assert_allclose(y, expected.numpy()[own], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gradient, gradients.numpy()[own], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer.moving_mean, plain.moving_mean, rtol=1e-5)


@case
def states_and_checkpoints() -> None:
    """Saved, restored and handed over in place, eagerly and in a session."""
    model, optimizer = (
        tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)]),
        tf.keras.optimizers.Adam(),
    )
    mean = tf.Variable(mine(2))
    state: Any = hvd.elastic.TensorFlowKerasState(model, optimizer, mean=mean, epoch=hvd.rank())
    state.sync()
    assert (mean.numpy().tolist(), state.epoch, state.mean is mean) == ([1.0, 1.0], 0, True)
    weights = hvd.allgather_object(model.get_weights()[0].tolist())
    assert weights == weights[:1] * hvd.size()
    mean.assign_add([1.0, 1.0])
    state.commit()
    mean.assign_add([5.0, 5.0])
    state.restore()
    assert mean.numpy().tolist() == [2.0, 2.0]

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=[float(hvd.rank()), 3.0])
        session.run(tf.compat.v1.global_variables_initializer())
        held: Any = hvd.elastic.TensorFlowState(session=session, step=0)
        held.sync()
        assert session.run(variable).tolist() == [0.0, 3.0]
        session.run(variable.assign([7.0, 7.0]))
        held.restore()
        assert session.run(variable).tolist() == [0.0, 3.0]


@case
def layers_of_keras_compute_with_what_was_handed_over() -> None:
    rows = np.array([[0.0, 1.0], [4.0, 5.0]], np.float32) + 3 * hvd.rank()

    def adapted() -> Any:
        norm, bins = tf.keras.layers.Normalization(), tf.keras.layers.Discretization(num_bins=2)
        norm.adapt(rows)
        bins.adapt(rows)
        return tf.keras.Sequential([tf.keras.layers.Input((2,)), norm, bins])

    for handed_over in (False, True):
        model = adapted()
        norm, bins = model.layers
        own = hvd.allgather_object(list(bins.bin_boundaries))
        assert own[0] != own[-1] or hvd.size() == 1
        if handed_over:
            hvd.elastic.TensorFlowKerasState(model).sync()
            assert list(bins.bin_boundaries) == own[0]
        else:
            hvd.broadcast_variables(model.variables, root_rank=0)
        assert norm(tf.constant([[2.0, 5.0]])).numpy().tolist() == [[0.0, 1.0]]


@case
def random_layers_draw_numbers_of_their_own_in_an_elastic_job() -> None:
    """Their states are variables of the model: kept where a step is computed again, and on no rank those of another."""
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.Dense(8), tf.keras.layers.Dropout(0.5)])
    optimizer = tf.keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    inputs = tf.ones((4, 8))
    for state in (
        hvd.elastic.TensorFlowKerasState(model, optimizer),
        hvd.elastic.TensorFlowState([v.value for v in model.variables]),
    ):
        state.sync()
        drawn = model(inputs, training=True).numpy() != 0
        state.restore()
        assert ((model(inputs, training=True).numpy() != 0) == drawn).all()
        everybody = hvd.allgather_object(drawn.tolist())
        assert everybody[0] != everybody[-1] or hvd.size() == 1


@case
def checkpoints_give_tensors_back() -> None:
    mean = tf.Variable([2.0, 2.0])
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None)
    with hvd.Checkpoints(folder) as checkpoints:
        eighths = [tf.cast(mean, kind) for kind in EIGHT_BITS]
        checkpoints.save(3, {"mean": mean, "half": tf.cast(mine(2), tf.bfloat16) * 0, "eighths": eighths, "step": 3})
        checkpoints.wait()
        restored = checkpoints.restore()
    assert restored is not None
    found = restored.state
    assert found["mean"].numpy().tolist() == [2.0, 2.0]
    assert (found["half"].dtype, found["step"]) == (tf.bfloat16, 3)
    assert [each.dtype for each in found["eighths"]] == list(EIGHT_BITS)
    assert [tf.cast(each, tf.float32).numpy().tolist() for each in found["eighths"]] == [[2.0, 2.0]] * 2
    hvd.barrier()
    if hvd.rank() == 0:
        shutil.rmtree(folder)


CASES += pairing.CASES


@case
def the_contract_of_bindings() -> None:
    for name, wrong in run_contract(TensorFlowUnderTest()).items():
        assert not wrong, f"{name}:\n{wrong}"


def main() -> None:
    """One rank."""
    hvd.init()
    chosen = [name for name in sys.argv[1:] if not name.startswith("--")]
    if "--slowly" in sys.argv:
        native().module, native().why = None, "this test says so"
        chosen = [each.__name__ for each in (verbs_of_a_graph_are_those_of_eager_tensors, more_verbs_of_a_graph)]
        chosen += ["gradients_are_those_of_the_sum_of_all_losses", "calls_of_one_name_keep_their_order"]
        chosen += ["a_tape_and_its_gradients", "errors_are_found_in_what_tensorflow_makes_of_them"]
    if "--by-arrival" in sys.argv:
        match_by_arrival()
        chosen = ["independent_collectives_of_a_graph_are_matched_by_name"]
    for each in CASES:
        if not chosen or each.__name__ in chosen:
            each()
            if hvd.rank() == 0:
                print(each.__name__, flush=True)
    assert native().module or "--slowly" in sys.argv, native().why
    hvd.shutdown()


def match_by_arrival() -> None:
    """Give calls of graphs names in the order in which they are begun: what must not be."""
    begin, arrivals = calls._BEGIN["allreduce"], itertools.count()

    def renamed(call: Any, spec: Any, process_set: Any) -> Any:
        return begin(call, msgspec.structs.replace(spec, name=f"arrival {next(arrivals)}"), process_set)

    calls._BEGIN["allreduce"] = renamed


if __name__ == "__main__":
    main()
