"""What is special about the tcp engine: lost connections, whose they are, and what is left of an engine."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import threading
import time

import pytest

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.engines import tcp
from farandole.engines.engine import Engine
from farandole.errors import AbortError, EngineError, StallError
from farandole.settings import FOREVER_S
from farandole.testing.harness import Died, run_ranks
from farandole.testing.leaks import no_leaks
from farandole.testing.rank import RankContext, error_of
from tests.support.patience import PATIENCE_S


def _raised(engine: Engine) -> tuple[str, str]:
    """The error of an all-reduce that must fail, and that nothing else follows it."""
    array = engine.allocate(4096).array(DType.FLOAT32)
    first = error_of(lambda: engine.allreduce(array, Reduction(ReduceOp.SUM)))
    return first, error_of(lambda: engine.allreduce(array, Reduction(ReduceOp.SUM)))


def test_a_killed_peer_is_noticed_at_once_and_named() -> None:
    from farandole.engines.tcp import TcpEngine

    def program(member: RankContext) -> tuple[float, str]:
        engine = TcpEngine(member.group("process set 0"), member.exchange)
        killed = member.rank == 1
        moments = member.exchange_among("moment", (0, 2))
        if killed:
            threading.Event().wait(0.2)  # let the others wait in their collective
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        text, again = _raised(engine)
        took = time.monotonic() - begin
        assert text == again
        engine.close()
        moments(b"")
        return took, text

    first, died, last = run_ranks(program, 3, may_die=[1])
    assert isinstance(died, Died)
    assert died.code == -signal.SIGKILL
    for took, text in (first, last):
        assert took < 10  # of the 20 s after which a wait would end by itself
        assert text.startswith("EngineError: the connection to rank")
        assert "in process set 0 was lost" in text


def test_a_script_that_ends_by_sigpipe_does_not_for_a_lost_peer() -> None:
    """As scripts do whose output goes to ``head``; the kernel sends that signal for the second try after a goodbye."""
    from farandole.engines.tcp import TcpEngine

    def program(member: RankContext) -> str:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        engine = TcpEngine(member.group("lane"), member.exchange)
        array = engine.allocate(32 * 2**20).array(DType.FLOAT32)
        engine.barrier()
        if member.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        [connection] = engine._transport._connections.values()  # type: ignore[attr-defined]
        gone = select.poll()
        gone.register(connection, select.POLLRDHUP)
        assert gone.poll(20_000)
        return error_of(lambda: engine.broadcast(array, 0))

    said, died = run_ranks(program, 2, may_die=[0, 1])
    assert isinstance(died, Died)
    assert isinstance(said, str), "it was killed, too"
    assert said.startswith("EngineError: the connection to rank 1 on localhost in lane was lost")


def test_one_launch_for_the_rest() -> None:
    def program(member: RankContext) -> None:
        from farandole.engines.tcp import TcpEngine

        count = [0]

        def make(deadline_s: float = 20.0) -> TcpEngine:
            count[0] += 1
            label = f"engine {count[0]}"
            group = member.group(label, deadline_s=deadline_s)
            return TcpEngine(group, member.exchange_among(label, group.ranks))

        for forever_s in (FOREVER_S, math.inf):
            _a_wait_without_a_limit_is_one_that_the_kernel_takes(make(deadline_s=forever_s), member)
        _what_is_closed_says_so(make())
        _an_abort_wakes_who_has_sent_a_part(make(), member)
        _a_connection_of_somebody_else_survives_an_abort(make())
        _a_stall_names_who_did_not_come(make(deadline_s=0.3), member)
        _a_lost_connection_takes_the_reason_of_an_abort_that_follows(make(), member)
        _nothing_is_left_of_many(make, member)

    run_ranks(program, 2)


def _a_wait_without_a_limit_is_one_that_the_kernel_takes(engine: Engine, member: RankContext) -> None:
    """``--no-stall-check`` means more milliseconds than ``poll`` can count."""
    array = engine.allocate(32 * 2**20).array(DType.FLOAT32)
    engine.allreduce(array, Reduction(ReduceOp.SUM))
    member.exchange(b"")
    engine.close()


def _what_is_closed_says_so(engine: Engine) -> None:
    engine.barrier()
    engine.close()
    with pytest.raises(EngineError, match="is closed"):
        engine.barrier()


def _an_abort_wakes_who_has_sent_a_part(engine: Engine, member: RankContext) -> None:
    """More than the kernels hold, and nobody takes it; what was put away of it makes no difference."""
    if member.rank == 0:
        errors: list[str] = []
        many = engine.allocate(64 * 2**20).array(DType.FLOAT32)
        sender = threading.Thread(target=lambda: errors.append(error_of(lambda: engine.broadcast(many, 0))))
        sender.start()
        while engine.statistics()["bytes_sent"] == 0:
            os.sched_yield()
        engine.abort("enough")
        sender.join(PATIENCE_S)
        assert errors == ["AbortError: enough"]
    member.exchange(b"")
    engine.close()


def _a_connection_of_somebody_else_survives_an_abort(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            engine.abort("enough")
            client.sendall(b"still here")
            assert accepted.recv(100) == b"still here"
    with pytest.raises(AbortError, match="enough"):
        engine.barrier()
    engine.close()


def _a_stall_names_who_did_not_come(engine: Engine, member: RankContext) -> None:
    if member.rank == 0:
        with pytest.raises(StallError, match=r"rank 1 on localhost did not join a collective of engine \d in 0.3 s"):
            engine.barrier()
    member.exchange(b"")
    engine.close()


def _a_lost_connection_takes_the_reason_of_an_abort_that_follows(engine: Engine, member: RankContext) -> None:
    if member.rank == 0:
        tcp._REASON_S = 30.0  # in the process of this rank
        errors: list[str] = []
        waiter = threading.Thread(target=lambda: errors.append(_raised(engine)[0]))
        waiter.start()
        member.exchange(b"waiting")
        member.exchange(b"lost")
        engine.abort("rank 1 on localhost was killed by SIGKILL")
        waiter.join()
        assert errors == ["AbortError: rank 1 on localhost was killed by SIGKILL"]
    else:
        member.exchange(b"")
        engine.abort("I go")
        member.exchange(b"")
    engine.close()


def _nothing_is_left_of_many(make: object, member: RankContext) -> None:
    assert callable(make)
    member.exchange(b"")
    with no_leaks():
        for _ in range(20):
            engine = make()
            values = (engine.allocate(400)).array(DType.FLOAT32)
            engine.allreduce(values, Reduction(ReduceOp.SUM))
            engine.broadcast(Array(values.address, 10, DType.FLOAT32), 1)
            engine.close()
        member.exchange(b"")
