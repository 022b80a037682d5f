"""Checks of ``farandole.mxnet`` beyond the contract of bindings, in every rank of a job of two."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

warnings.filterwarnings("ignore", category=DeprecationWarning)  # MXNet 1.9 asks NumPy for np.bool

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

import farandole.mxnet as hvd  # noqa: E402
from workbench.binding.under_test import raises  # noqa: E402


def operators_before_a_collective_are_done_and_those_after_it_see_its_result() -> None:
    """Writers and readers of the array that MXNet has not run yet, and operators that follow at once."""
    side = mx.nd.ones((400, 400)) / 400
    for turn in range(40):
        late = mx.nd.ones((400, 400)) * (1 + hvd.rank())
        for _ in range(3):
            late = mx.nd.dot(late, side)
        slow = mx.nd.dot(mx.nd.dot(side, side), side)
        before = late + slow  # reads what the collective writes, after something slow
        assert hvd.allreduce_(late, op=hvd.Sum) is late
        after = late * 2
        late += 1
        assert np.allclose(before.asnumpy(), 1 + hvd.rank() + 1 / 400), turn
        assert np.allclose(after.asnumpy(), 6), turn
        assert np.allclose(late.asnumpy(), 4), turn
        handle = hvd.allreduce_async(late + side, op=hvd.Sum)
        assert np.allclose(hvd.synchronize(handle).asnumpy(), 8 + 2 / 400), turn


def views_are_written_where_they_lie() -> None:
    """Rows that are cut out share the memory of the whole."""
    whole = mx.nd.zeros((4, 3)) + hvd.rank()
    hvd.allreduce_(whole[1:3], op=hvd.Sum)
    hvd.broadcast_(whole[3], root_rank=1)
    assert whole.asnumpy()[:, 0].tolist() == [hvd.rank(), 1.0, 1.0, 1.0]
    assert hvd.alltoall(whole, splits=mx.nd.array([1, 3], dtype="int32"))[1].asnumpy().sum() == 2 + 4 * hvd.rank()


def a_rank_that_cannot_is_an_error_on_all() -> None:
    """The other one is told what this one cannot send."""
    sparse = mx.nd.sparse.row_sparse_array(([[1.0]], [0]), shape=(1, 1))
    for wrong, text in ((sparse, r"row_sparse array does not travel: pass x.tostype"), ([1.0], "is no array of MXNet")):
        kind = ValueError if hvd.rank() else hvd.HorovodInternalError
        with raises(kind, text):
            hvd.allreduce(wrong if hvd.rank() else mx.nd.ones(1))
    assert hvd.allreduce(mx.nd.ones(1)).asscalar() == 1


def _net(count: int = 2, **options: Any) -> Any:
    mx.random.seed(3)
    made = mx.gluon.nn.Sequential()
    made.add(*(mx.gluon.nn.Dense(4, in_units=4, use_bias=False, **options) for _ in range(count)))
    made.initialize(mx.init.Xavier())
    return made


def _step(net: Any, trainer: Any, layers: slice, **options: Any) -> None:
    x = mx.nd.ones((2, 4)) * (1 + hvd.rank())
    with mx.autograd.record():
        for layer in list(net)[layers]:
            x = layer(x)
        loss = x.sum()
    loss.backward()
    trainer.step(2, **options)


def _weights(net: Any) -> list[Any]:
    return [param.data().asnumpy() for param in net.collect_params().values()]


def _agreed(net: Any) -> bool:
    every = hvd.allgather_object([each.tobytes() for each in _weights(net)])
    return all(each == every[0] for each in every)


def a_parameter_that_only_one_rank_uses_is_trained_on_all() -> None:
    """And one that nobody uses stays, or raises in Gluon's way."""
    net = _net(3)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    before = _weights(net)
    for _ in range(2):
        _step(net, trainer, slice(0, 2 - hvd.rank()), ignore_stale_grad=True)
    assert _agreed(net)
    assert [bool((a == b).all()) for a, b in zip(before, _weights(net), strict=True)] == [False, False, True]
    with raises(UserWarning, "has not been updated by backward"):
        _step(net, trainer, slice(0, 1))


def parameters_may_be_frozen_and_come_back() -> None:
    """The gradients of those that are trained are reduced."""
    net = _net()
    first = next(iter(net.collect_params().values()))
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    for req in ("write", "null", "null", "write"):
        first.grad_req = req
        before = _weights(net)
        _step(net, trainer, slice(None))
        assert _agreed(net)
        assert (before[0] == _weights(net)[0]).all() == (req == "null")


def blocks_that_one_rank_has_made_before_change_nothing() -> None:
    """Gluon counts them in the names of the next ones, and sorts by these: dense10 before dense9."""
    if hvd.rank() == 1:
        count = int(mx.gluon.nn.Dense(1).name.removeprefix("dense"))
        for _ in range((7 - count) % 10):  # the next ones are 9, 10, or 19, 20
            mx.gluon.nn.Dense(1)
        assert mx.gluon.nn.Dense(1).name.endswith("8")
    net = _net(2)
    names = list(net.collect_params())
    assert (sorted(names) != names) == (hvd.rank() == 1), names
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    _step(net, trainer, slice(None))
    assert _agreed(net)
    net.collect_params().initialize(force_reinit=True)
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    assert _agreed(net)


def ranks_with_fewer_batches_join() -> None:
    """The steps of the others are those of the ranks that still train."""
    net = _net()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    for _ in range(1 + hvd.rank()):
        _step(net, trainer, slice(None))
    assert hvd.join() == 1
    hvd.broadcast_parameters(net.collect_params(), root_rank=1)
    _step(net, trainer, slice(None))
    assert _agreed(net)


def trainers_refuse_what_they_cannot_do() -> None:
    """Sparse gradients, and factors that are none; of an optimizer that reduces, too, they take what is inside."""
    params = _net().collect_params()
    sgd = mx.optimizer.create("sgd")
    embedding = mx.gluon.nn.Embedding(3, 2, sparse_grad=True)
    embedding.initialize()
    for make, text in (
        (lambda: hvd.DistributedTrainer(params, sgd, gradient_predivide_factor=0), "is above 0"),
        (lambda: hvd.DistributedTrainer(embedding.collect_params(), "sgd"), "sparse_grad=False"),
        (lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd)), "not distributed yet"),
    ):
        with raises(ValueError, text):
            make()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer = hvd.DistributedTrainer(params, hvd.DistributedOptimizer(sgd))
    assert "the optimizer inside" in str(said[0].message)
    assert trainer.optimizer is sgd


def a_distributed_optimizer_is_that_which_it_wraps() -> None:
    """What is set there takes effect, and copies are distributed, too."""
    made = hvd.DistributedOptimizer(mx.optimizer.create("sgd", momentum=0.9, learning_rate=0.5))
    for optimizer in (made, pickle.loads(pickle.dumps(made))):
        optimizer.rescale_grad = 0.25
        assert (optimizer.momentum, optimizer.learning_rate, optimizer._optimizer.rescale_grad) == (0.9, 0.5, 0.25)
        optimizer.set_learning_rate(1.0)
        weight = mx.nd.zeros(2)
        mx.optimizer.get_updater(optimizer)(0, mx.nd.ones(2) * (2 + 4 * hvd.rank()), weight)
        assert weight.asnumpy().tolist() == [-1.0, -1.0]


def a_module_trains() -> None:
    """The API before Gluon."""
    mx.random.seed(hvd.rank())
    out = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1), mx.sym.var("label"))
    x = np.random.default_rng(hvd.rank()).normal(size=(32, 3)).astype("float32")
    batches = mx.io.NDArrayIter(x, x.sum(1), batch_size=8, label_name="label")
    module = mx.mod.Module(out, data_names=["data"], label_names=["label"])
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params(mx.init.Xavier())
    arguments, _ = module.get_params()
    hvd.broadcast_parameters(arguments, root_rank=0)
    module.set_params(arguments, {})
    plain = mx.optimizer.create("sgd", learning_rate=0.5, rescale_grad=1 / 8)
    module.fit(batches, eval_metric="mse", kvstore=None, optimizer=hvd.DistributedOptimizer(plain), num_epoch=10)
    arguments, _ = module.get_params()
    found = {name: array.asnumpy().tolist() for name, array in arguments.items()}
    assert hvd.broadcast_object(found) == found
    assert np.allclose(next(v for n, v in found.items() if n.endswith("weight")), 1, atol=1e-2)


def main() -> None:
    """One rank."""
    cases: list[Callable[[], None]] = [
        thing
        for name, thing in globals().items()
        if callable(thing) and thing.__module__ == __name__ and name != "main"
    ]
    for case in cases:
        if not case.__name__.startswith("_"):
            hvd.init()
            case()
            hvd.shutdown()
            sys.stdout.write(f"{case.__name__}\n")


if __name__ == "__main__":
    main()
