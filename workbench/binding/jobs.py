"""Cases of the job around the collectives: objects, process sets, topology, timeline, joining, leaving."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import socket
import tempfile
from pathlib import Path

import numpy as np

from farandole.collective import ReduceOp, Reduction
from farandole.runtime.collectives.objects import BufferAdapter
from farandole.runtime.collectives.verbs import Verbs
from workbench.binding.under_test import BindingUnderTest, raises


def objects(b: BindingUnderTest) -> None:
    """Objects of any size, different on each rank."""
    assert b.hvd.broadcast_object({"rank": b.rank, "text": "é" * 1000}, root_rank=b.size - 1)["rank"] == b.size - 1
    assert b.hvd.allgather_object([b.rank] * b.rank) == [[r] * r for r in range(b.size)]


def process_sets(b: BindingUnderTest) -> None:
    """Collectives of all ranks but the first, which is refused."""
    if b.size == 1:
        return
    hvd, mine = b.hvd, b.make([b.rank], "int64")
    tail = hvd.add_process_set(list(range(1, b.size)))
    if b.rank:
        assert (tail.size(), tail.rank()) == (b.size - 1, b.rank - 1)
        assert b.same(hvd.allreduce(mine, op=hvd.Sum, process_set=tail), [sum(range(1, b.size))])
        assert b.same(hvd.broadcast(mine, root_rank=b.size - 1, process_set=tail), [b.size - 1])
        assert hvd.allgather_object(b.rank, process_set=tail) == list(range(1, b.size))
        assert hvd.broadcast_object(b.rank, root_rank=1, process_set=tail) == 1
        with raises(ValueError, "global rank"):
            hvd.broadcast(mine, root_rank=0, process_set=tail)
    else:
        with raises(ValueError, "included"):
            hvd.allreduce(mine, process_set=tail)
    assert hvd.remove_process_set(tail) is True


def unnamed_calls_of_two_bindings(b: BindingUnderTest) -> None:
    """Each call meets its counterpart on the other ranks, whatever another framework in the process does meanwhile."""
    hvd, other = b.hvd, Verbs(BufferAdapter())
    for turn in range(3):
        mine, theirs = b.make([b.rank], "int64"), (ctypes.c_char * 2)(*[bytes([r + b.rank]) for r in range(2)])
        handles = [hvd.allreduce_async(mine, op=hvd.Sum), hvd.allreduce_async(mine, op=hvd.Max)]
        begun = other.allreduce([theirs], None, Reduction(ReduceOp.MAX), hvd.global_process_set).begin()
        handles.append(hvd.allreduce_async(mine, op=hvd.Min))
        found = [b.values(hvd.synchronize(handle)).tolist() for handle in handles]
        assert found == [[sum(range(b.size))], [b.size - 1], [0]], turn
        assert [ord(byte) for byte in begun.wait()[0]] == [b.size - 1, b.size]


def the_topology_and_the_probes(b: BindingUnderTest) -> None:
    """Agreement with the names of hosts, and with the installed packages."""
    hvd, host = b.hvd, socket.gethostname()
    assert hvd.is_initialized()
    hosts = hvd.allgather_object(host)
    here = [rank for rank, name in enumerate(hosts) if name == host]
    assert (hvd.local_rank(), hvd.local_size()) == (here.index(b.rank), len(here))
    like_me = [name for name in dict.fromkeys(hosts) if hosts.count(name) > hvd.local_rank()]
    assert (hvd.cross_rank(), hvd.cross_size()) == (like_me.index(host), len(like_me))
    assert hvd.is_homogeneous() is (len({hosts.count(name) for name in hosts}) == 1)
    assert hvd.gloo_enabled() is not hvd.mpi_enabled()
    mpi4py = importlib.util.find_spec("mpi4py") is not None
    probes = {"mpi": mpi4py, "gloo": True, "nccl": False, "ddl": False, "ccl": False, "cuda": False, "rocm": False}
    assert {name: bool(getattr(hvd, f"{name}_built")()) for name in probes} == probes
    assert [int(op) for op in (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)] == list(range(6))


def a_timeline_of_some_calls(b: BindingUnderTest) -> None:
    """The file has the calls of all ranks between start and stop, and is complete after stop."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for _ in range(20):
            b.hvd.start_timeline(str(path))
            b.hvd.allreduce(b.make([1.0]), name="inside")
            b.hvd.barrier()  # it is over on every rank
            b.hvd.stop_timeline()
            complete = path.read_text() if b.rank == 0 else ""
            b.hvd.allreduce(b.make([1.0]), name="outside")
            b.hvd.barrier()
            if b.rank == 0:
                lines = json.loads(complete.rstrip(",\n") + "]")
                reduced = {line["pid"] for line in lines if line["name"] == "reduce" and "inside" in str(line["args"])}
                assert reduced == set(range(b.size))
                assert path.read_text() == complete


def join_and_barrier(b: BindingUnderTest) -> None:
    """Ranks that have joined contribute zeros, and averages stay those of all ranks."""
    b.hvd.barrier()
    for i in range(b.rank):
        total = b.hvd.allreduce(b.make(np.ones(2)), name=f"uneven{i}", op=b.hvd.Sum)
        assert b.same(total, [float(b.size - 1 - i)] * 2)
        assert b.same(b.hvd.allreduce(b.make([1.0]), name=f"mean{i}"), [1 - (i + 1) / b.size], 1e-12)
    last = b.hvd.join()
    assert b.hvd.broadcast_object(last) == last
    assert 0 <= last < b.size


def a_session_after_another(b: BindingUnderTest) -> None:
    """Everything works after ``shutdown`` and ``init``, and unnamed calls meet again."""
    for turn in range(3):
        for _ in range(turn + 1):
            assert b.same(b.hvd.allreduce(b.make(np.ones(2)), op=b.hvd.Sum), [b.size] * 2)
        kept = b.hvd.allreduce(b.make(np.ones(2)))
        b.hvd.shutdown()
        assert not b.hvd.is_initialized()
        assert b.hvd.global_process_set.size() is None
        assert b.same(kept, [1.0] * 2)  # the memory is still there
        with raises(ValueError, r"call init\(\) first"):
            b.hvd.allreduce(kept)
        b.hvd.init()
