"""What Horovod 0.28.1 computes, warns of and refuses, asserted by every rank."""

import contextlib
import logging
import warnings

import horovod.torch as hvd
import pytest
import torch
from horovod.torch.mpi_ops import HorovodInternalError
from horovod.torch.optimizer import _DistributedOptimizer

import farandole.torch as derivatives


def gradient(call, tensor, weight=1.0):
    """The gradient of the sum of what ``call`` returns, each value weighted."""
    tensor = tensor.clone().requires_grad_()
    results = call(tensor)
    results = results if isinstance(results, list) else [results]
    sum((weight * r).sum() for r in results).backward()
    return tensor.grad


def expect(found, value):
    torch.testing.assert_close(found, torch.full_like(found, value))


def check_factors(members, process_set):
    n = len(members)
    check_gradients_of(hvd, 1 / n, n, members, process_set)
    check_gradients_of(derivatives, 1.0, 1.0, members, process_set)
    twice = torch.ones(2, requires_grad=True)  # the backward pass of the backward pass is Horovod's, too
    (first,) = torch.autograd.grad((hvd.allgather(twice, process_set=process_set) ** 3).sum(), twice, create_graph=True)
    expect(first, 3.0)
    (second,) = torch.autograd.grad(first.sum(), twice)
    expect(second, 6.0 / n)


def check_gradients_of(of, gathering, scattering, members, process_set):
    """Every rank weighs what it gets by 1 + its number; the sum of all weights is known."""
    n, me = len(members), members.index(hvd.rank())
    weight, total = 1.0 + me, sum(range(1, n + 1))
    rows, root, to = torch.ones(2 + me, 3), members[-1], {"process_set": process_set}
    expect(gradient(lambda t: of.allgather(t, **to), rows, weight), gathering * total)
    expect(gradient(lambda t: of.grouped_allgather([t, 2 * t], **to), rows, weight), gathering * 3 * total)
    at_root = gathering * total if hvd.rank() == root else 0.0
    expect(gradient(lambda t: of.broadcast(t, root, **to), rows[:2], weight), at_root)
    for op, share in ((hvd.Sum, 1.0), (hvd.Average, 1 / n)):
        for scale in (1.0, 6.0):
            check_reducescatter(of, scattering * share * scale, op, scale, n, weight, to)
    expect(gradient(lambda t: of.allreduce(t, op=hvd.Sum, **to), rows[:2], weight), total)  # the same in both
    expect(gradient(lambda t: of.alltoall(t, **to), torch.ones(n), 1.0), 1.0)


def check_reducescatter(of, factor, op, scale, n, weight, to):
    how = {"op": op, "prescale_factor": scale / 2, "postscale_factor": 2.0, **to}
    owners = torch.arange(n).repeat_interleave(2)[:, None] + 1.0
    found = gradient(lambda t: of.reducescatter(t, **how), torch.ones(2 * n, 3), weight)
    torch.testing.assert_close(found, (factor * owners).expand(2 * n, 3))
    found = gradient(lambda t: of.grouped_reducescatter([t, 2 * t], **how), torch.ones(2 * n, 3), weight)
    torch.testing.assert_close(found, (3 * factor * owners).expand(2 * n, 3))


def check_that_it_is_said_once():
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("farandole").addHandler(handler)
    logging.getLogger("farandole").propagate = False
    gradient(derivatives.allgather, torch.ones(2))
    gradient(hvd.allreduce, torch.ones(2))
    hvd.allgather(torch.ones(2, requires_grad=True))
    assert said == []
    for _ in range(2):
        gradient(hvd.allgather, torch.ones(2))
        gradient(lambda t: hvd.broadcast(t, 0), torch.ones(2))
    logging.getLogger("farandole").removeHandler(handler)
    logging.getLogger("farandole").propagate = True
    assert [text for text in said if "as in Horovod 0.28.1" not in text] == []
    assert len(said) == (hvd.rank() == 0)


def make(optimizer=torch.optim.SGD, **more):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, hvd.DistributedOptimizer(optimizer(model.parameters(), lr=0.1), model.named_parameters(), **more)


def check_the_warning_of_step():
    model, optimizer = make()
    for skips, warned in ((True, 0), (False, 1), (None, 0)):
        model(torch.ones(1, 3)).sum().backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if skips is not None:
                optimizer.synchronize()
                assert optimizer._synchronized
            with optimizer.skip_synchronize() if skips else contextlib.nullcontext():
                optimizer.step()
        texts = [str(w.message) for w in caught]
        assert len(texts) == warned, texts
        assert all(t.startswith("optimizer.step() called without optimizer.skip_synchronize()") for t in texts)
        assert all(w.filename == __file__ for w in caught)
        assert not optimizer._synchronized
        optimizer.zero_grad()


def check_gradients_after_a_broadcast_of_fresh_state():
    for wrapped in (False, True):
        model, optimizer = make(torch.optim.Adam)
        model.bias.requires_grad_(False)
        optimizer = optimizer if wrapped else torch.optim.Adam(model.parameters())
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert torch.equal(model.weight.grad, torch.zeros(2, 3))
        assert model.bias.grad is None
        if wrapped:
            model(torch.full((1, 3), 1.0 + hvd.rank())).sum().backward()
            expect(model.weight.grad, (hvd.size() + 1) / 2)
            optimizer.step()
            before = model.weight.grad.clone()
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # it has a state now
            assert torch.equal(model.weight.grad, before)
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    hvd.broadcast_optimizer_state(torch.optim.SGD(embedding.parameters(), lr=1.0), 0, model=embedding)
    assert embedding.weight.grad.is_sparse
    embedding.weight.grad = None
    derivatives.broadcast_optimizer_state(torch.optim.SGD(embedding.parameters(), lr=1.0), 0, model=embedding)
    assert embedding.weight.grad is None


def check_what_is_refused():
    for kind in (RuntimeError, NotImplementedError, ValueError):
        with pytest.raises(kind):
            hvd.reducescatter(torch.ones(4), op=hvd.Adasum)
    with pytest.raises(RuntimeError):
        hvd.synchronize(hvd.reducescatter_async(torch.ones(4), op=hvd.Adasum))
    with pytest.raises(RuntimeError):
        hvd.grouped_reducescatter([torch.ones(4)], op=hvd.Adasum)
    with pytest.raises(RuntimeError):
        hvd.reducescatter(torch.tensor(1.0))
    with pytest.raises(RuntimeError):
        hvd.alltoall(torch.tensor(1.0))
    with pytest.raises(RuntimeError):
        hvd.allreduce(torch.ones(2).to(torch.float8_e5m2))
    with pytest.raises(HorovodInternalError):
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="mismatch")
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.ones(2, requires_grad=True)]), 0)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def check_private_names():
    some = hvd.add_process_set(range(hvd.size() - 1))
    for optimizer in (torch.optim.SGD, torch.optim.Adam):
        model, distributed = make(optimizer, compression=hvd.Compression.fp16, op=hvd.Sum, process_set=some)
        assert isinstance(distributed, optimizer)
        assert isinstance(distributed, _DistributedOptimizer)
        assert str(type(distributed)) == f"<class 'horovod.torch.optimizer.{optimizer.__name__}'>"
        assert (distributed.op, distributed._compression) == (hvd.Sum, hvd.Compression.fp16)
        assert distributed.process_set is some
        assert distributed._requires_update == set(model.parameters())
        distributed._requires_update = set()  # as forks of fast-autoaugment do
        with pytest.raises(AttributeError):
            distributed.op = hvd.Average  # would have no effect
    hvd.remove_process_set(some)
    _, adasum = make(op=hvd.Adasum)
    assert "horovod" in str(type(adasum))
    assert adasum.op == hvd.Adasum

    model, distributed = make(compression=hvd.Compression.fp16, gradient_predivide_factor=2.0)
    model.weight.grad = torch.full((2, 3), 1.0 + hvd.rank())
    handle, context = distributed._allreduce_grad_async(model.weight)
    expect(distributed._compression.decompress(hvd.synchronize(handle), context), (hvd.size() + 1) / 2)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        class Mine(_DistributedOptimizer):
            def _register_hooks(self):
                pass

    assert ["Mine overrides _register_hooks" in str(w.message) for w in caught] == [True]
    made = type("SGD", (torch.optim.SGD,), dict(_DistributedOptimizer.__dict__))
    with pytest.raises(RuntimeError):
        Mine(model.parameters())
    with pytest.raises(RuntimeError):
        made(model.parameters(), lr=0.1)


def main():
    with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd.init\(\). size\(\) was called"):
        hvd.size()
    hvd.init()
    assert hvd.mpi_ops.allgather is hvd.allgather is not derivatives.allgather
    check_that_it_is_said_once()
    check_factors(list(range(hvd.size())), hvd.global_process_set)
    if hvd.size() > 2:
        part = hvd.add_process_set([0, 2])
        if part.included():
            check_factors([0, 2], part)
        hvd.remove_process_set(part)
    check_the_warning_of_step()
    check_gradients_after_a_broadcast_of_fresh_state()
    check_what_is_refused()
    check_private_names()
    print(f"rank {hvd.rank()} of {hvd.size()} has seen Horovod's numbers")


if __name__ == "__main__":
    main()
