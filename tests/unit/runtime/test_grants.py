"""However messages overtake each other, all ranks end each round in the same way, with the same contributions."""

from __future__ import annotations

import random
from collections import deque
from typing import final

from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.collective import Kind
from farandole.control.messages import Order, Signature
from farandole.runtime.lanes.grants import WITHDRAWN, Grant, Grants, Said

KEY = (0, "loss")
GIVE, ASK = "give", "ask"


def granting(number: int) -> Order:
    return Order(0, number, Kind.ALLREDUCE, ["loss"], [Signature(Kind.ALLREDUCE, [8], [[1]])], direct=number)


@final
class Rank:
    """Gives, or asks the controller instead, as its ``plan`` says; ``ended`` is how its rounds have ended."""

    def __init__(self, rank: int, plan: list[str]) -> None:
        self.rank, self.plan = rank, deque(plan)
        self.ended: list[list[bytes] | str] = []
        self.given: Grant | None = None
        self.asks = self.has_begun = False


@final
class Simulation:
    """Ranks, the wires between them, and a controller that grants the name anew whenever all have asked it."""

    def __init__(self, plans: list[list[str]], rng: random.Random) -> None:
        self.rng, size = rng, len(plans)
        self.ranks = [Rank(rank, plan) for rank, plan in enumerate(plans)]
        self.grants = [Grants(size) for _ in plans]
        self.wires: dict[tuple[int, int], deque[tuple[int, Said]]] = {
            (a, b): deque() for a in range(size) for b in range(size) if a != b
        }
        self.orders: list[deque[Order]] = [deque() for _ in plans]
        self.granted, self.asked = 0, set[int]()
        self.grant()

    def grant(self) -> None:
        self.granted += 1
        for queue in self.orders:
            queue.append(granting(self.granted))

    def run(self) -> None:
        while moves := [
            *(("wire", pair) for pair, wire in self.wires.items() if wire),
            *(("order", (rank, rank)) for rank, queue in enumerate(self.orders) if queue),
            *(("act", (r.rank, r.rank)) for r in self.ranks if r.plan and self.may_act(r)),
        ]:
            kind, (a, b) = self.rng.choice(moves)
            if kind == "wire":
                number, said = self.wires[a, b].popleft()
                if grant := self.grants[b].add_part(a, number, said):
                    self.settle(self.ranks[b], grant)
            elif kind == "order":
                self.obey(self.ranks[a], self.orders[a].popleft())
            else:
                self.act(self.ranks[a])

    def may_act(self, rank: Rank) -> bool:
        """One occurrence of a name is in flight at a time."""
        return rank.has_begun and rank.given is None and not rank.asks

    def act(self, rank: Rank) -> None:
        does, grants = rank.plan.popleft(), self.grants[rank.rank]
        grant = grants.find(KEY)
        if grant is not None and does == GIVE:
            rank.given = grant
            self.say(rank, grant, b"%d:%d" % (rank.rank, len(rank.ended)))
            self.settle(rank, grant)
            return
        if grant is not None:
            self.say(rank, grant, WITHDRAWN)
            grants.close(grant)
        self.announcement(rank)

    def say(self, rank: Rank, grant: Grant, said: Said) -> None:
        grant.add_part(rank.rank, said)
        for other in self.ranks:
            if other is not rank:
                self.wires[rank.rank, other.rank].append((grant.number, said))

    def announcement(self, rank: Rank) -> None:
        rank.asks = True
        self.asked.add(rank.rank)
        if len(self.asked) == len(self.ranks):
            self.asked.clear()
            self.grant()

    def obey(self, rank: Rank, order: Order) -> None:
        rank.has_begun = True
        if rank.asks:
            rank.asks = False
            rank.ended.append("asked")
        self.settle(rank, self.grants[rank.rank].open(order))

    def settle(self, rank: Rank, grant: Grant) -> None:
        if parts := grant.next_round():
            assert rank.given is grant
            rank.given = None
            rank.ended.append(parts)
            assert not grant.next_round()
        if not grant.is_open:
            if self.grants[rank.rank].find(KEY) is grant:
                self.grants[rank.rank].close(grant)
            if rank.given is grant:
                rank.given = None
                self.announcement(rank)


@settings(max_examples=2 * settings().max_examples)
@given(st.data())
def test_all_ranks_end_every_round_alike(data: st.DataObject) -> None:
    size, rounds = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 6))
    does = st.sampled_from([GIVE, GIVE, GIVE, ASK])
    plans = [data.draw(st.lists(does, min_size=rounds, max_size=rounds)) for _ in range(size)]
    simulation = Simulation(plans, random.Random(data.draw(st.integers(0, 2**32))))
    simulation.run()
    first, *others = simulation.ranks
    assert all(rank.ended == first.ended for rank in others)
    assert len(first.ended) == rounds, "everybody came, so every round ends"
    for turn, ended in enumerate(first.ended):
        by_all = all(plan[turn] == GIVE for plan in plans)
        assert ended == ([b"%d:%d" % (rank, turn) for rank in range(size)] if by_all else "asked")


def test_what_comes_before_its_grant_is_kept_and_what_comes_after_its_end_is_not() -> None:
    grants = Grants(2)
    assert grants.add_part(1, 2, b"early") is None
    old = grants.open(granting(1))
    grant = grants.open(granting(2))
    assert not old.is_open
    assert grants.find(KEY) is grant
    assert grants.add_part(1, 1, b"late") is None
    grant.add_part(0, b"mine")
    assert grant.next_round() == [b"mine", b"early"]
    assert grants.all() == [grant]
