"""States that are saved, restored and agreed on, and the loop that calls a training function again."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from farandole import events
from farandole.elastic.worker.run import ATTEMPTS, run
from farandole.elastic.worker.sampler import GlobalBatch, SampleCursor, sequential
from farandole.elastic.worker.state import ObjectState
from farandole.elastic.worker.state_parts import StateHandler
from farandole.elastic.worker.step_vote import StepVote, alone
from farandole.errors import CollectiveError, EngineError, HostsUpdatedInterrupt, MismatchError, StartError, UsageError
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.session.init import current, init, shutdown
from farandole.runtime.session.process_sets import global_process_set
from farandole.testing.rank import RankContext
from workbench.jobs import run_job


class Counter:
    """Has a state of its own, as a scheduler has."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


@pytest.fixture
def job() -> Any:
    """A job of this process alone."""
    init()
    yield
    shutdown()


def test_restore_goes_back_to_the_last_commit(job: None) -> None:
    counter = Counter()
    state: Any = ObjectState(epoch=0, seen=[], counter=counter)
    state.epoch, counter.count = 1, 1
    state.seen.append("a")
    state.commit()
    state.epoch, counter.count = 2, 2
    state.seen.append("b")
    state.restore()
    assert (state.epoch, state.seen, counter.count) == (1, ["a"], 1)
    state.seen.append("c")
    state.restore()
    assert state.seen == ["a"]


def test_before_the_first_commit_restore_goes_back_to_the_beginning(job: None) -> None:
    state: Any = ObjectState(epoch=0)
    state.epoch = 7
    state.restore()
    assert state.epoch == 0


def test_where_steps_are_voted_what_is_newer_than_the_last_commit_stays(job: None) -> None:
    state: Any = ObjectState(batch=0)
    state._votes = True
    state.batch = 1
    state.commit()
    state.batch = 2
    state.restore()
    assert state.batch == 1  # no step was voted since
    state.batch = 2
    state._step_vote.cast(alone)
    state.restore()
    assert state.batch == 2  # the last voted step is that of batch 2


def test_a_value_that_is_replaced_is_kept_from_then_on(job: None) -> None:
    state: Any = ObjectState(counter=Counter())
    state.counter = other = Counter()
    other.count = 5
    state.save()
    other.count = 6
    state.restore()
    assert other.count == 5


def test_a_vote_moves_the_step_and_the_samples(job: None) -> None:
    step_vote, cursor = StepVote(), SampleCursor(10, size=2)
    step_vote.cursors["sampler"] = cursor
    cursor.hand_out(GlobalBatch(0, 5))

    def meet(point: str, said: str) -> list[str]:
        due, place, passed, samples = said.split(",")
        assert (point, due, passed, samples) == ("vote 0", "", "2", "3")
        return [said, f"!,{place},5,2"]

    phases: list[str] = []
    cancel = events.subscribe(lambda event: phases.append(getattr(event, "phase", "")))
    assert step_vote.cast(meet, 2) == 5  # this rank has left out a pass
    step_vote.applied()
    cancel()
    assert (step_vote.step, cursor.position, step_vote.change_due) == (1, 5, True)
    assert phases == ["vote", "voted", "applied"]


def takes_unevenly(member: RankContext) -> list[Any]:
    """Ranks with one batch, two and three, which is what one of them expects; and one rank in another epoch."""
    init()
    said: list[Any] = []
    for batches, epoch in ((1 + member.rank, 0), (1, member.rank // 2)):
        step_vote, lane = StepVote(), PlannedLane(current(), global_process_set, f"votes {len(said)}")
        step_vote.cursors = {name: SampleCursor(12, sequential, rank=member.rank, size=3) for name in "ab"}
        step_vote.cursors["a"].hand_out(GlobalBatch(0, 3))
        step_vote.cursors["b"].set_epoch(epoch)
        for i in range(batches):
            step_vote.cursors["b"].hand_out(GlobalBatch(3 * i, 3 * i + 3))
        with contextlib.suppress(MismatchError):
            step_vote.cast(lane.meet)
        said.append((step_vote.step, step_vote.is_applying, *(each.position for each in step_vote.cursors.values())))
        lane.close()
    shutdown()
    return said


def test_a_step_whose_samples_ranks_do_not_agree_on_counts_on_none() -> None:
    assert run_job(takes_unevenly, 3) == [[(0, False, 0, 0)] * 2] * 3


def agrees(member: RankContext) -> list[Any]:
    """Whose values all have: at first, when one rank is a step ahead, and after a value of one rank's own."""
    init()
    state: Any = ObjectState(name=f"rank {member.rank}", counter=Counter())
    state.counter.count = member.rank
    state.sync()
    said = [state.name, state.counter.count]
    if member.rank == 1:
        state.name, state.counter.count = "ahead", 9
        state._step_vote.step += 1
    state.sync()
    said += [state.name, state.counter.count, state._step_vote.step]
    state.name = f"own {member.rank}"
    state.sync()
    said.append(state.name)
    state._joined, state._is_whole = True, False
    try:
        state.sync()
    except StartError as error:
        said.append("lost" in str(error))
    shutdown()
    return said


def test_all_ranks_follow_the_oldest_of_those_with_the_newest_state() -> None:
    assert run_job(agrees, 3) == [["rank 0", 0, "ahead", 9, 1, "own 0", True]] * 3


class Elsewhere(StateHandler):
    """Keeps a value in a way of its own."""

    def save(self) -> None:
        self.saved = dict(self.value)

    def restore(self) -> None:
        self.value.update(self.saved)

    def sync(self) -> None:
        self.value["synced"] = self.value.get("synced", 0) + 1


class OwnState(ObjectState):
    """Keeps dicts by ``Elsewhere``."""

    def _handler(self, value: Any) -> StateHandler | None:
        return Elsewhere(value) if isinstance(value, dict) else super()._handler(value)


def loops(member: RankContext) -> list[Any]:
    """A function that fails, is interrupted, and then is done."""
    init()
    state: Any = OwnState(calls=0, elsewhere={"a": 1})
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(current().generation)])
    calls = []

    @run
    def train(state: Any, word: str) -> str:
        calls.append(current().generation)
        state.calls += 1
        if len(calls) == 1:
            state.commit()
            state.calls = 100
            state.elsewhere["a"] = 2
            raise CollectiveError("the script says that something is wrong")
        if len(calls) == 2:
            assert state.elsewhere["a"] == 1
            if member.rank == 1:
                state.on_hosts_updated()
            try:
                state.commit()
            except Exception:
                return "eaten"
        return f"{word} {state.calls}"

    said: list[Any] = [train(state, "done"), len(calls), len(resets), state.elsewhere["synced"]]
    shutdown()
    return said


def gives_up(member: RankContext) -> list[Any]:
    """Functions that nothing helps."""
    init()
    state = ObjectState(n=member.rank)
    said: list[Any] = []

    @run
    def differ(state: Any) -> None:
        raise MismatchError("another program")

    try:
        differ(state)
    except MismatchError:
        said.append("differ")
    tries = []

    @run
    def fail(state: Any) -> None:
        tries.append(1)
        raise EngineError("no memory")

    try:
        fail(state)
    except EngineError:
        said.append(len(tries))
    shutdown()
    return said


def test_the_function_is_called_again_until_it_returns() -> None:
    assert run_job(loops, 2) == [["done 3", 3, 2, 3]] * 2


def test_what_ranks_do_differently_or_cannot_do_at_all_is_not_tried_for_ever() -> None:
    assert run_job(gives_up, 2) == [["differ", ATTEMPTS + 1]] * 2


def test_the_interrupt_is_no_exception_that_scripts_catch() -> None:
    assert not issubclass(HostsUpdatedInterrupt, Exception)
    assert not HostsUpdatedInterrupt().skip_sync


LOST_AT_THE_BEGINNING = """
    import os, signal
    from farandole.elastic.worker.run import run
    from farandole.elastic.worker.state import ObjectState
    from farandole.runtime.session.engine_pool import EnginePool
    from farandole.runtime.session.init import current, init

    if os.environ["FARANDOLE_WORKER_ID"] == "1":
        EnginePool.executor = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # it has been let in, and connects

    @run
    def train(state):
        for state.n in range(state.n, 5):
            state.commit()
        return state.n

    init()
    print("done", train(ObjectState(n=0)))
"""


def test_a_worker_that_is_lost_while_the_first_generation_forms_takes_nobody_along(launch: Any) -> None:
    said = launch(3, LOST_AT_THE_BEGINNING, options=["--min-np", "2"]).ok()
    assert said.lines() == ["done 4"] * 2, said


TOLD = """
    import os, signal
    import numpy as np
    from farandole.numpy import allreduce
    from farandole.numpy.elastic import NumpyState, run
    from farandole.runtime.session.init import init

    @run
    def train(state):
        while state.step < 5:
            state.w += allreduce(np.ones(1), name="w")
            state.step += 1
            if os.environ["FARANDOLE_WORKER_ID"] == "1" and state.step == 3:
                signal.raise_signal(signal.SIGTERM)
                raise RuntimeError("a process that loads data is killed by the same signal")
            state.commit()

    init()
    state = NumpyState(w=np.zeros(1), step=0)
    try:
        train(state)
    except SystemExit as error:
        print("left at", state.step, state.w, error.code)
        raise
    print("done", state.step)
"""


def test_an_error_after_a_notice_is_a_leave_at_the_last_commit(launch: Any) -> None:
    done = launch(2, TOLD, options=["--min-np", "1"]).ok()
    assert "left at 2 [2.] 143" in done.lines(), done
    assert "done 5" in done.lines()
    assert "after SIGTERM the training function has raised RuntimeError: a process that loads data" in done.stderr


def test_a_value_that_cannot_be_kept_is_named(job: None) -> None:
    with pytest.raises(UsageError, match=r"its value 'guard', a lock: TypeError: cannot pickle.*state_dict"):
        ObjectState(epoch=0, guard=threading.Lock())
    state: Any = ObjectState(epoch=0, names=None)
    state.names = Uncopied()
    with pytest.raises(UsageError, match=r"its value 'names', a Uncopied: RuntimeError: not this one"):
        state.sync()


class Uncopied:
    """Can be copied, and not pickled."""

    def __deepcopy__(self, _: object) -> Uncopied:
        return self

    def __reduce__(self) -> str:
        raise RuntimeError("not this one")
