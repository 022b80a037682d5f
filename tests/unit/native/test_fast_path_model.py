"""Every interleaving of the fast path of ``native/fast_path.hpp``, explored on a model of it.

One step of the model is one access to shared memory. A member may leave a round at any time, and may take the slow way
at once: in the core, time and the hint ``left`` decide. The slow way ends for a call when all members have come to it
there. The model is worth something because it fails for each of the protocols in ``BROKEN``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

NOBODY = -1


class Member(NamedTuple):
    """Next step of one member, the call that it is in, what it has seen, and the parts it has read."""

    step: str = "begin"
    call: int = 0
    round: int = 0
    found: int = 0
    read: tuple[int, ...] = ()
    is_open: bool = True


class State(NamedTuple):
    """Shared memory and the members. ``parts`` are by member and parity, and hold the number of a call."""

    members: tuple[Member, ...]
    parts: tuple[tuple[int, int], ...]
    round: int = 0
    inside: int = 0
    fast: frozenset[int] = frozenset()
    """Calls that have ended in a round."""
    is_wrong: bool = False


class Protocol(NamedTuple):
    """The real one, or with one thing forgotten."""

    part_comes_first: bool = True
    parts_alternate: bool = True
    is_one_exchange: bool = True
    leaving_looks: bool = True
    refusal_closes: bool = True
    refuses: bool = False
    """Whether the first member refuses its second call, and goes on at once."""


class Model:
    """All states of so many members with so many calls each."""

    def __init__(self, members: int, calls: int, protocol: Protocol) -> None:
        self.size, self.calls, self.protocol = members, calls, protocol

    def first(self) -> State:
        return State((Member(),) * self.size, ((NOBODY, NOBODY),) * self.size)

    def successors(self, state: State) -> Iterator[State]:
        for place, member in enumerate(state.members):
            if member.step != "end":
                yield from getattr(self, "_" + member.step)(state, place, member)

    def _begin(self, state: State, place: int, member: Member) -> Iterator[State]:
        protocol = self.protocol
        if protocol.refuses and place == 0 and member.call == 1:
            yield self._next_call(state, place, member._replace(is_open=not protocol.refusal_closes))
            return
        yield self._moved(state, place, member._replace(step="slow"))
        if member.is_open:
            step = "write" if protocol.part_comes_first else "enter"
            yield self._moved(state, place, member._replace(step=step, round=state.round, found=state.inside, read=()))

    def _write(self, state: State, place: int, member: Member) -> Iterator[State]:
        parity = member.round % 2 if self.protocol.parts_alternate else 0
        own = list(state.parts[place])
        own[parity] = member.call
        parts = (*state.parts[:place], (own[0], own[1]), *state.parts[place + 1 :])
        step = "enter" if self.protocol.part_comes_first else "watch"
        yield self._moved(state._replace(parts=parts), place, member._replace(step=step))

    def _enter(self, state: State, place: int, member: Member) -> Iterator[State]:
        # The exchange fails where the word has changed, and is tried again with what was found.
        before = member.found if not self.protocol.is_one_exchange else state.inside
        is_last = before + 1 == self.size
        step = "watch" if self.protocol.part_comes_first else "write"
        if is_last:
            word = state._replace(round=member.round + 1, inside=0, fast=state.fast | {member.call})
            yield self._moved(word, place, member._replace(step="read" if step == "watch" else step))
        else:
            yield self._moved(state._replace(inside=before + 1), place, member._replace(step=step))

    def _watch(self, state: State, place: int, member: Member) -> Iterator[State]:
        if state.round != member.round:
            yield self._moved(state, place, member._replace(step="read"))
        else:
            yield self._moved(state, place, member._replace(step="leave"))

    def _leave(self, state: State, place: int, member: Member) -> Iterator[State]:
        if state.round != member.round and self.protocol.leaving_looks:
            yield self._moved(state, place, member._replace(step="read"))
        else:
            inside = max(0, state.inside - 1)
            yield self._moved(state._replace(inside=inside), place, member._replace(step="slow"))

    def _read(self, state: State, place: int, member: Member) -> Iterator[State]:
        parity = member.round % 2 if self.protocol.parts_alternate else 0
        read = (*member.read, state.parts[len(member.read)][parity])
        state = state._replace(is_wrong=state.is_wrong or read[-1] != member.call)
        member = member._replace(read=read)
        yield self._next_call(state, place, member) if len(read) == self.size else self._moved(state, place, member)

    def _slow(self, state: State, place: int, member: Member) -> Iterator[State]:
        there = [m.step == "slow" and m.call == member.call for m in state.members]
        is_refused = self.protocol.refuses and member.call == 1
        if is_refused and state.members[0].call > 1:  # it is told, and raises
            yield self._next_call(state, place, member._replace(is_open=False))
        elif all(there) or any(m.call > member.call and member.call not in state.fast for m in state.members):
            yield self._next_call(state, place, member)

    def _next_call(self, state: State, place: int, member: Member) -> State:
        step = "end" if member.call + 1 == self.calls else "begin"
        return self._moved(state, place, Member(step, member.call + 1, is_open=member.is_open))

    @staticmethod
    def _moved(state: State, place: int, member: Member) -> State:
        return state._replace(members=(*state.members[:place], member, *state.members[place + 1 :]))

    def wrong(self, state: State, is_final: bool) -> str:
        """What is wrong with a state, or nothing."""
        if state.is_wrong:
            return WRONG
        if is_final and any(member.step != "end" for member in state.members):
            return STUCK
        return ""

    def explore(self) -> tuple[int, str]:
        """Number of states, and what is wrong with the first that is, or nothing."""
        seen, todo = {self.first()}, [self.first()]
        while todo:
            state = todo.pop()
            following = list(self.successors(state))
            if error := self.wrong(state, not following):
                return len(seen), error
            new = [each for each in following if each not in seen]
            seen.update(new)
            todo += new
        return len(seen), ""


WRONG, STUCK = "a member has read the part of another call", "nobody can go on"
BROKEN = {
    "the part is written after entering": (Protocol(part_comes_first=False), WRONG),
    "one part serves all rounds": (Protocol(parts_alternate=False), WRONG),
    "the word is read and then written": (Protocol(is_one_exchange=False), STUCK),
    "who leaves does not look": (Protocol(leaving_looks=False), STUCK),
    "a refusal leaves the way open": (Protocol(refuses=True, refusal_closes=False), WRONG),
}


@pytest.mark.parametrize(("members", "calls"), [(2, 4), (3, 3)])
@pytest.mark.parametrize("refuses", [False, True])
def test_each_call_ends_for_all_members_in_one_way_and_with_the_parts_of_this_call(
    members: int, calls: int, refuses: bool
) -> None:
    states, error = Model(members, calls, Protocol(refuses=refuses)).explore()
    assert not error
    assert states > 100


@pytest.mark.parametrize(("protocol", "expected"), BROKEN.values(), ids=list(BROKEN))
def test_the_model_finds_what_is_forgotten(protocol: Protocol, expected: str) -> None:
    found = {Model(members, calls, protocol).explore()[1] for members, calls in ((2, 4), (3, 3))}
    assert expected in found
