"""The contract of bindings over ``farandole.mxnet``, in every rank of a job: ``python contract_job.py [np]``.

With ``np`` under the rules of ``mx.np``, whose arrays are the other kind that MXNet has. Also what
``tests/frameworks/bindings/test_bindings.py`` asks of a binding, as MXNet is in an environment of its own.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt

import farandole.mxnet
from farandole.adapters.mxnet import BFLOAT16, DTYPES, values
from farandole.mxnet import elastic
from farandole.mxnet.compression import cast
from farandole.runtime.collectives.ops import PUBLIC
from workbench.binding.contract import run_contract
from workbench.binding.under_test import BindingUnderTest, Distributed, Trainer, Values

IS_NP = "np" in sys.argv[1:]


class MxnetUnderTest(BindingUnderTest):
    """``farandole.mxnet``."""

    name = "mxnet"
    hvd: Any = farandole.mxnet
    elastic: Any = elastic
    copies_scalars = IS_NP
    dtypes = tuple(dtype.label for dtype in DTYPES.values())

    def make(self, values: npt.ArrayLike, dtype: str = "float64") -> Any:
        with mx.util.np_shape(True):
            if dtype == "bfloat16":
                return cast(self.make(values, "float32"), BFLOAT16)
            made = mx.nd.array(np.array(values), dtype=dtype)
        return made.as_np_ndarray() if IS_NP else made

    def values(self, tensor: Any) -> Values:
        assert isinstance(tensor, mx.np.ndarray) is IS_NP, "an array of the other kind"
        wide = cast(tensor, "float64") if tensor.dtype == BFLOAT16 else tensor
        return np.array(values(wide), np.float64)

    def dtype(self, tensor: Any) -> str:
        return DTYPES[np.dtype(tensor.dtype)].label

    def views(self, values: Values) -> list[Any]:
        return [self.make(values).T, self.make(values)[:, ::2], self.make(values)[1:], self.make(values)[1]]

    def repeated(self, value: float, count: int) -> Any:
        return self.make(np.full(count, value))[:]

    def distributed(self, like: Mapping[str, Any], **options: Any) -> Distributed:
        reduce: Distributed = farandole.mxnet.DistributedGradients(like, **options)
        return reduce

    def outlandish(self) -> Any:
        return mx.nd.sparse.row_sparse_array(([[1.0], [1.0], [1.0]], [0, 1, 2]), shape=(3, 1))

    def trainer(self, rule: str, distributed: bool = True, **options: Any) -> Trainer | None:
        return None if options else GluonTrainer(self, rule, distributed)  # no loss scales, no virtual workers

    def state(self, **values: Any) -> Any:
        return self.elastic.MxnetState(**values)


class GluonTrainer(Trainer):
    """A network of Gluon, and its trainer."""

    def __init__(self, b: MxnetUnderTest, rule: str, distributed: bool) -> None:
        self.b = b
        self.net = mx.gluon.nn.Dense(1, in_units=3, dtype="float64", weight_initializer="zeros", prefix="w_and_b_")
        self.net.initialize()
        params, settings = self.net.collect_params(), {"learning_rate": 0.05}
        settings |= {"momentum": 0.9} if rule == "sgd" else {}
        if distributed:
            self.trainer = farandole.mxnet.DistributedTrainer(params, rule, settings)
        else:
            self.trainer = mx.gluon.Trainer(params, rule, settings, kvstore=None)

    def step(self, x: Values, y: Values) -> None:
        with mx.autograd.record():
            error = self.net(self.b.make(x)) - self.b.make(y)
            loss = (error * error).mean()
        loss.backward()
        self.trainer.step(1)

    def weights(self) -> dict[str, Values]:
        w, b = self.net.weight.data().asnumpy(), self.net.bias.data().asnumpy()
        return {"w": np.ascontiguousarray(w.T), "b": b}

    def add(self, name: str, amount: float) -> None:
        param = self.net.weight if name == "w" else self.net.bias
        param.set_data(param.data() + amount)

    def state(self, **values: Any) -> Any:
        return self.b.elastic.MxnetState(net=self.net, trainer=self.trainer, **values)


def main() -> None:
    """One rank."""
    if IS_NP:
        mx.npx.set_np()
    hvd = farandole.mxnet
    assert [name for name in PUBLIC if name not in hvd.__all__ or not getattr(hvd, name).__doc__] == []
    assert pickle.loads(pickle.dumps(hvd.allreduce)).__self__ is hvd.ops
    hvd.init()
    found = run_contract(MxnetUnderTest())
    for case, wrong in found.items():
        assert not wrong, f"{case}:\n{wrong}"
    sys.stdout.write(f"{len(found)} cases passed\n")
    hvd.shutdown()


if __name__ == "__main__":
    main()
