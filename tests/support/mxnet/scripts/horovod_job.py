"""A script for ``horovod.mxnet``, with Horovod's arguments by position."""

import horovod.mxnet as hvd
import mxnet as mx
from horovod.mxnet.compression import Compression
from horovod.mxnet.functions import broadcast_object
from horovod.mxnet.mpi_ops import allreduce_
from mxnet import autograd, gluon

hvd.init()
r, n = hvd.rank(), hvd.size()

x = mx.nd.ones((2, 2)) * (r + 1)
assert hvd.allreduce(x, False, "sum", 5).asnumpy().sum() == 4 * 3
assert hvd.allreduce(x, name="max", op=hvd.Max).asnumpy().max() == 2
assert hvd.allreduce(x, True, "scaled", 0, 2.0, 0.5).asnumpy()[0, 0] == 1.5
assert hvd.grouped_allreduce([x, x], average=False, name="pair", priority=1)[1].asnumpy().sum() == 4 * 3
assert hvd.allgather(x, "rows", -1).shape == (4, 2)
assert hvd.grouped_allgather([x], "more", -1)[0].shape == (4, 2)
assert hvd.broadcast(x, 1, "root", 3).asnumpy().max() == 2
assert hvd.alltoall(x, mx.nd.array([1, 1], dtype="int32"), "each", 1)[0].shape == (2, 2)
assert hvd.reducescatter(x, hvd.Sum, "share", 1).shape == (1, 2)
assert hvd.grouped_reducescatter([x], hvd.Average, "shares", 1)[0].asnumpy()[0, 0] == 1.5
y = x.copy()
assert allreduce_(y, False, "in place", 1) is y
assert hvd.grouped_allreduce_([y], False, "in place", 1)[0] is y
assert y.asnumpy()[0, 0] == 6
hvd.broadcast_(y, 0, "y", 2)
assert broadcast_object({"rank": r}) == {"rank": 0}
assert hvd.allgather_object(r) == [0, 1]

net = gluon.nn.Dense(1)
net.initialize(mx.init.Normal(1.0 + r))
params = net.collect_params()
hvd.broadcast_parameters(params, root_rank=0, prefix="net")
opt = mx.optimizer.create("sgd", learning_rate=0.05)
trainer = hvd.DistributedTrainer(params, opt, compression=Compression.fp16, prefix="net", num_groups=1)
for _ in range(100):
    data = mx.nd.random.normal(shape=(8, 3))
    with autograd.record():
        loss = gluon.loss.L2Loss()(net(data), data.sum(axis=1))
    loss.backward()
    trainer.step(8)
found = net.weight.data().asnumpy()
assert abs(found - 1).max() < 0.05, found
assert (hvd.broadcast(net.weight.data(), 0).asnumpy() == found).all()
print("trained")
