"""The life of a session: alone and among others, again and again, forked, refused, and ended by a failure."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from farandole import events
from farandole.cluster.environment import CONTROLLER, KEY, OWN
from farandole.collective import Array, Kind
from farandole.control.addresses import free_port
from farandole.control.keys import new_secret
from farandole.control.messages import Waits
from farandole.errors import (
    AbortError,
    EngineError,
    NotInitializedError,
    SettingsError,
    StartError,
    UsageError,
)
from farandole.runtime.lanes.call import Call
from farandole.runtime.lanes.negotiated import NegotiatedLane
from farandole.runtime.session.init import current, init, is_initialized, shutdown
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.testing.leaks import ResourceSnapshot, no_leaks
from farandole.testing.rank import RankContext
from tests.support.patience import PATIENCE_S
from workbench.jobs import NumpyCalls, run_job


def test_alone_everything_works_at_once() -> None:
    with no_leaks():
        init(process_sets="dynamic")
        init()
        assert is_initialized()
        session = current()
        assert (session.topology.rank, session.topology.size, session.engine) == (0, 1, "solo")
        x = np.array([2.0, 3.0])
        NumpyCalls().allreduce("x", x, scales=(2.0, 0.5))
        np.testing.assert_array_equal(x, [2.0, 3.0])
        together, _ = NumpyCalls().allgather("x", x)
        np.testing.assert_array_equal(together, x)
        assert session.join() == 0
        session.barrier()
        assert global_process_set.size() == 1
        shutdown()
        shutdown()
    assert not is_initialized()
    with pytest.raises(NotInitializedError, match=r"allreduce was called.*init\(\) first"):
        current("allreduce")


def test_alone_an_error_is_the_handles() -> None:
    init()

    def no_memory(shape: tuple[int, ...]) -> Array:
        raise MemoryError(f"not for {shape}")

    x = np.ones(4)
    call = Call(Kind.ALLGATHER, "allgather.big", NumpyCalls().array(x), x.shape, allocate=no_memory)
    handle = current().submit([call])
    with pytest.raises(EngineError, match=r"MemoryError: not for \(4,\)"):
        handle.wait()
    NumpyCalls().allreduce("next", x)
    shutdown()


def test_two_hundred_lives_alone_leave_nothing() -> None:
    init()
    shutdown()
    with no_leaks():
        for _ in range(200):
            init()
            NumpyCalls().allreduce("x", np.ones(1))
            shutdown()


def test_what_one_process_cannot_be() -> None:
    with pytest.raises(UsageError, match="different ranks among 0 to 0"):
        init(comm=[1])
    with pytest.raises(UsageError, match="a communicator of mpi4py"):
        init(comm=7)
    with pytest.raises(UsageError, match="does not fit a job of 1"):
        init(process_sets=[[0, 1]])
    with pytest.raises(SettingsError, match=r"engin .*did you mean engine"):
        init(engin="shm")
    assert not is_initialized()


def test_a_subinterpreter_is_told_to_leave_it_to_the_main_one() -> None:
    code = "from farandole.runtime.session.init import init\ntry:\n init()\nexcept ValueError as error:\n print(error)"
    script = f"""
        try:
            import _interpreters as interpreters
            number = interpreters.create("legacy")
        except ImportError:
            import _xxsubinterpreters as interpreters
            number = interpreters.create(isolated=False)
        interpreters.run_string(number, {code!r})
        interpreters.destroy(number)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "init() was called in a subinterpreter: call it in the main interpreter\n"
    assert done.stderr == ""


def test_nobody_at_the_controllers_address(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {OWN.rank: "1", OWN.size: "2", CONTROLLER: f"tcp://127.0.0.1:{free_port()}", KEY: new_secret()}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartError, match=r"rank 1 on .* cannot join.*no controller answered"):
        init(start_timeout_s=0.5)
    os.close(_stack_descriptor())


def test_a_controllers_port_that_is_taken(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        for name, value in {OWN.rank: "0", OWN.size: "2", CONTROLLER: address, KEY: new_secret()}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StartError, match=f"could not listen at {address}.*a free port"):
            init()
    assert "cannot listen" in capfd.readouterr().err


def _stack_descriptor() -> int:
    """What ``init`` keeps for the life of the process, so that this one leaves no descriptor behind."""
    from farandole.runtime.session.tracebacks import stack_dump

    fd, _ = stack_dump()
    stack_dump.cache_clear()
    return fd


def _live(member: RankContext) -> None:
    init()
    x = np.full(3, member.rank + 1.0)
    NumpyCalls().allreduce("x", x)
    assert x[0] == sum(range(1, member.size + 1))
    shutdown()


def _lives(member: RankContext, lives: int) -> int:
    for _ in range(lives // 4):
        _live(member)
    before = _resident_bytes()
    with no_leaks():
        for _ in range(lives - lives // 4):
            _live(member)
    return _resident_bytes() - before


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_two_hundred_generations_in_the_same_processes_leave_nothing() -> None:
    for growth in run_job(_lives, 2, 200, timeout_s=4 * PATIENCE_S):
        assert growth < 2 * 2**20


def _forking(member: RankContext) -> int:
    init()
    NumpyCalls().allreduce("before", np.ones(1))
    child = os.fork()
    if child == 0:
        shutdown()
        os._exit(is_initialized())
    _, status = os.waitpid(child, 0)
    x = np.ones(1)
    NumpyCalls().allreduce("after", x)
    shutdown()
    return status if x[0] == member.size else -1


def test_a_forked_child_has_no_session_and_leaves_the_parents_alone() -> None:
    assert run_job(_forking, 2) == [0, 0]


def _failing_allocation(member: RankContext) -> str:
    init()

    def no_memory(_: tuple[int, ...]) -> Array:
        raise MemoryError("not this much")

    x = np.ones(4)
    try:
        if member.rank == 1:
            call = Call(Kind.ALLGATHER, "allgather.big", NumpyCalls().array(x), x.shape, allocate=no_memory)
            with pytest.raises(EngineError, match="MemoryError: not this much"):
                current().submit([call], background=False).wait()
        else:
            with pytest.raises(AbortError, match=r"rank 1 on .*not this much"):
                NumpyCalls().allgather("big", x)
        with pytest.raises((AbortError, EngineError), match="not this much"):
            NumpyCalls().allreduce("next", x)
    finally:
        shutdown()
    init()
    NumpyCalls().allreduce("again", x)
    shutdown()
    return str(x[0])


def test_a_failure_on_one_rank_ends_the_generation_for_all_and_the_next_one_works() -> None:
    assert run_job(_failing_allocation, 3) == ["3.0"] * 3


def _broken_start(member: RankContext) -> str:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = ResourceSnapshot.of_this_process()
    if member.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))  # shared memory is a file to the kernel
    with pytest.raises((EngineError, AbortError)) as caught:
        init()
    assert not is_initialized()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("farandole")]
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    init()
    x = np.ones(1)
    NumpyCalls().allreduce("x", x)
    shutdown()
    left = [
        line
        for line in ResourceSnapshot.of_this_process().since(before)
        if line.startswith("descriptors") and "stacks" not in line
    ]
    assert x[0] == member.size
    return f"{caught.value} {left if member.rank else []}"  # rank 0 keeps its pipe to the controller


def test_a_rank_that_cannot_start_ends_the_start_of_all_and_leaves_nothing() -> None:
    for text in run_job(_broken_start, 2):
        assert re.match(r"rank 1 on \S+ .*File too large", text)
        assert text.endswith("[]")


def _interrupted_with_an_order(member: RankContext) -> str:
    init()
    x = np.ones(100)  # more than travels with the order: the others wait for this rank in the engine

    def interrupt(event: events.Event) -> None:
        if isinstance(event, events.Phase) and event.phase == "queue":
            raise KeyboardInterrupt

    if member.rank == 0:
        cancel = events.subscribe(interrupt)
        with pytest.raises(KeyboardInterrupt):
            NumpyCalls().allreduce("x", x)
        cancel()
    with pytest.raises((AbortError, EngineError)) as caught:
        NumpyCalls().allreduce("x", x)
    shutdown()
    return str(caught.value)


def test_an_interrupt_between_an_order_and_its_execution_is_told_to_all() -> None:
    for text in run_job(_interrupted_with_an_order, 2, environment={"FARANDOLE_STALL_SHUTDOWN_S": "30"}):
        assert "KeyboardInterrupt" in text


def _waiting_while_others_leave(member: RankContext) -> str:
    init()
    if member.rank == 0:
        NumpyCalls().allreduce("first", np.ones(1))
        shutdown()
        return "left"
    NumpyCalls().allreduce("first", np.ones(1))
    with pytest.raises(AbortError, match="rank 0") as caught:
        NumpyCalls().allreduce("second", np.ones(1))
    shutdown()
    return str(caught.value)


def test_who_needs_a_rank_that_has_left_is_told() -> None:
    left, told = run_job(_waiting_while_others_leave, 2)
    assert left == "left"
    assert "rank 0" in told


AFTER_RANK_0 = """
import numpy as np
import farandole.numpy as hvd

mine = hvd.ProcessSet([1])
hvd.init(process_sets=[mine])
if hvd.rank() == 1:
    input()
    print(hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=mine, name="late"))
"""


def test_the_others_go_on_when_the_process_of_rank_0_has_ended() -> None:
    told = {OWN.size: "2", CONTROLLER: f"tcp://127.0.0.1:{free_port()}", KEY: new_secret()}
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", AFTER_RANK_0],
            env={**os.environ, **told, OWN.rank: str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    )
    with first, second:
        assert first.wait(PATIENCE_S) == 0
        assert second.communicate("go on\n", 60)[0] == "[1.]\n"


def _shutdown_wakes_other_threads(member: RankContext) -> str:
    init()
    raised: list[BaseException] = []

    handle = current().submit([NumpyCalls().reduction(f"never.{member.rank}", np.ones(1))])

    def wait() -> None:
        try:
            handle.wait()
        except AbortError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    current().barrier()
    shutdown()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return str(raised[0])


def test_shutdown_wakes_those_who_wait_in_other_threads() -> None:
    for text in run_job(_shutdown_wakes_other_threads, 2):
        assert "shutdown()" in text


def _forgotten_numbers(member: RankContext) -> None:
    init()
    lane = current()._lane
    assert isinstance(lane, NegotiatedLane)
    resent: list[tuple[int, str]] = []
    resend = lane._resend

    def count(key: tuple[int, str]) -> None:
        resent.append(key)
        resend(key)

    lane._resend = count  # type: ignore[method-assign]
    for name in "aaabbbacccb":  # the controller forgets what was used longest ago, a worker what came first
        x = np.ones(100)
        NumpyCalls().allreduce(name, x)
        assert x[0] == member.size
    assert resent == [(0, "allreduce.b")]
    shutdown()


def test_a_number_that_the_controller_has_forgotten_is_said_in_full() -> None:
    run_job(_forgotten_numbers, 2, environment={"FARANDOLE_CACHE_CAPACITY": "2"})


def _subset(member: RankContext) -> tuple[int, int] | None:
    if member.rank == 1:
        with pytest.raises(UsageError, match="not among them"):
            init(comm=[0, 2])
        return None
    init(comm=[0, 2], process_sets=[ProcessSet([1])])
    x = np.ones(1)
    NumpyCalls().allreduce("x", x)
    worker_id = current().topology.rank, int(x[0])
    shutdown()
    return worker_id


def test_some_of_the_ranks_can_be_the_job() -> None:
    assert run_job(_subset, 3) == [(0, 2), None, (1, 2)]


def _surveyed_in_vain(member: RankContext) -> float:
    init(process_sets="dynamic")
    session = current()
    asked = threading.Event()

    def waits() -> Waits:
        asked.set()
        raise RuntimeError("as the test asked for")

    session.waits = waits  # type: ignore[method-assign]
    x = np.ones(1)
    if member.rank == 0:
        assert asked.wait(
            PATIENCE_S
        )  # this rank looks at its waits while it is in no collective, and the other one in one
    NumpyCalls().allreduce("x", x)
    two, y = session.add_process_set([0, 1]), np.ones(100_000)
    assert two.process_set_id is not None
    if member.rank < 2:
        NumpyCalls(two.process_set_id).allreduce("y", y)  # its engine is made by what comes to that thread
        x += y[0]
    shutdown()
    return float(x[0])


def test_a_survey_of_waits_that_fails_stops_no_job() -> None:
    assert run_job(_surveyed_in_vain, 3, timeout_s=PATIENCE_S) == [5.0, 5.0, 3.0]
