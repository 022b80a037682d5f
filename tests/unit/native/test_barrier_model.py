"""Every interleaving of the barrier of ``native/barrier.hpp``, explored on a model of it.

One step of the model is one access to shared memory, or one system call. Looking at the word before sleeping
("spinning") is left out: it only reads, and sleeping begins with the same look. The model is worth something because it
fails for each of the protocols in ``BROKEN``, which differ from the real one by what one might forget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import pytest

RANKS = 3
ROUNDS = 2


class Rank(NamedTuple):
    """Where one rank is: its next step, how many barriers it passed and came to, the phase it saw, its end."""

    step: str = "load"
    passed: int = 0
    came: int = 0
    seen: int = 0
    aborted: bool = False


class State(NamedTuple):
    """Shared memory (``phase`` and ``abort`` are one word), the ranks, and the next step of a thread that may abort."""

    phase: int = 0
    abort: bool = False
    arrived: int = 0
    sleepers: int = 0
    ranks: tuple[Rank, ...] = (Rank(),) * RANKS
    aborter: str = "set"


class Protocol(NamedTuple):
    """The real one, or with one thing forgotten."""

    sleeping_compares: bool = True
    moving_respects_abort: bool = True
    reset_comes_first: bool = True
    sleepers_are_read_last: bool = True
    passing_beats_abort: bool = True
    abort_wakes: bool = True


Step: TypeAlias = Callable[[State, Rank, Protocol], tuple[State, Rank]]


def load(state: State, rank: Rank, _: Protocol) -> tuple[State, Rank]:
    if state.abort:
        return state, rank._replace(step="end", aborted=True)
    return state, rank._replace(step="arrive", seen=state.phase)


def arrive(state: State, rank: Rank, protocol: Protocol) -> tuple[State, Rank]:
    last = state.arrived + 1 == RANKS
    first_of_last = "reset" if protocol.reset_comes_first else "move"
    if last and not protocol.sleepers_are_read_last:
        first_of_last = "wake early"
    step = first_of_last if last else "announce"
    return state._replace(arrived=state.arrived + 1), rank._replace(step=step, came=rank.came + 1)


def reset(state: State, rank: Rank, protocol: Protocol) -> tuple[State, Rank]:
    if protocol.reset_comes_first:
        return state._replace(arrived=0), rank._replace(step="move")
    return state._replace(arrived=0), rank._replace(step="wake")


def move(state: State, rank: Rank, protocol: Protocol) -> tuple[State, Rank]:
    if state.abort and protocol.moving_respects_abort:
        return state, rank._replace(step="end", aborted=True)
    after = "wake" if protocol.reset_comes_first else "reset"
    if not protocol.sleepers_are_read_last:
        after = "pass"
    return state._replace(phase=state.phase + 1, abort=False), rank._replace(step=after)


def wake(state: State, rank: Rank, _: Protocol) -> tuple[State, Rank]:
    return state, rank._replace(step="wake all" if state.sleepers else "pass")


def wake_early(state: State, rank: Rank, _: Protocol) -> tuple[State, Rank]:
    return (_woken(state) if state.sleepers else state), rank._replace(step="reset")


def wake_all(state: State, rank: Rank, _: Protocol) -> tuple[State, Rank]:
    return _woken(state), rank._replace(step="pass")


def announce(state: State, rank: Rank, _: Protocol) -> tuple[State, Rank]:
    return state._replace(sleepers=state.sleepers + 1), rank._replace(step="look")


def look(state: State, rank: Rank, _: Protocol) -> tuple[State, Rank]:
    changed = state.abort or state.phase != rank.seen
    return state, rank._replace(step="leave" if changed else "sleep")


def sleep(state: State, rank: Rank, protocol: Protocol) -> tuple[State, Rank]:
    changed = state.abort or state.phase != rank.seen
    return state, rank._replace(step="look" if changed and protocol.sleeping_compares else "asleep")


def leave(state: State, rank: Rank, protocol: Protocol) -> tuple[State, Rank]:
    moved = state.phase != rank.seen
    passed = moved if protocol.passing_beats_abort else not state.abort
    awake = state._replace(sleepers=state.sleepers - 1)
    return awake, rank._replace(step="pass") if passed else rank._replace(step="end", aborted=True)


def go_on(state: State, rank: Rank, _: Protocol) -> tuple[State, Rank]:
    done = rank.passed + 1 == ROUNDS
    return state, rank._replace(step="end" if done else "load", passed=rank.passed + 1)


STEPS: dict[str, Step] = {
    "load": load, "arrive": arrive, "reset": reset, "move": move, "wake": wake, "wake early": wake_early,
    "wake all": wake_all, "announce": announce, "look": look, "sleep": sleep, "leave": leave, "pass": go_on,
}  # fmt: skip


def _woken(state: State) -> State:
    """What the kernel's wake does: whoever is asleep looks again."""
    ranks = tuple(rank._replace(step="look") if rank.step == "asleep" else rank for rank in state.ranks)
    return state._replace(ranks=ranks)


def _successors(state: State, protocol: Protocol) -> Iterator[State]:
    for place, rank in enumerate(state.ranks):
        if rank.step in STEPS:
            after, moved = STEPS[rank.step](state, rank, protocol)
            yield after._replace(ranks=(*after.ranks[:place], moved, *after.ranks[place + 1 :]))
    if state.aborter == "set":
        yield state._replace(abort=True, aborter="wake" if protocol.abort_wakes else "end")
        yield state._replace(aborter="never")
    elif state.aborter == "wake":
        yield _woken(state)._replace(aborter="end")


def _wrong(state: State, is_final: bool) -> str:
    """What is wrong with a state, or nothing."""
    slowest, fastest = min(r.came for r in state.ranks), max(r.passed for r in state.ranks)
    if fastest > slowest:
        return "a rank passed a barrier to which another had not come"
    if not is_final:
        return ""
    if any(rank.step != "end" for rank in state.ranks):
        return "a rank sleeps forever"
    if len({rank.passed for rank in state.ranks}) > 1:
        return "a barrier was passed by one rank and aborted for another"
    if state.aborter == "never" and any(rank.aborted for rank in state.ranks):
        return "aborted, but nobody did"
    return ""


def explore(protocol: Protocol) -> tuple[int, str]:
    """How many states there are, and the first thing found wrong."""
    start = State()
    known, frontier = {start}, [start]
    while frontier:
        state = frontier.pop()
        following = set(_successors(state, protocol))
        if wrong := _wrong(state, not following):
            return len(known), f"{wrong}: {state}"
        frontier.extend(following - known)
        known |= following
    return len(known), ""


def test_no_interleaving_hangs_or_divides_the_ranks() -> None:
    states, wrong = explore(Protocol())
    assert not wrong
    assert states > 10_000


BROKEN = [
    (Protocol(sleeping_compares=False), "sleeps forever"),
    (Protocol(moving_respects_abort=False), "sleeps forever|aborted for another"),
    (Protocol(reset_comes_first=False), "sleeps forever|had not come"),
    (Protocol(sleepers_are_read_last=False), "sleeps forever"),
    (Protocol(passing_beats_abort=False), "aborted for another"),
    (Protocol(abort_wakes=False), "sleeps forever"),
]


@pytest.mark.parametrize(("protocol", "expected"), BROKEN)
def test_the_model_notices_what_is_forgotten(protocol: Protocol, expected: str) -> None:
    _, wrong = explore(protocol)
    assert any(text in wrong for text in expected.split("|")), wrong
