"""Every interleaving of small jobs and thousands of random schedules; ``PEER_SEED=4711 pytest ...`` repeats one."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from farandole.collective import Kind
from farandole.control.messages import Order
from farandole.runtime.coordination.negotiation import Delivery, Negotiation
from farandole.runtime.coordination.pending_resends import PendingResends
from farandole.runtime.coordination.rank_set import NOBODY
from farandole.runtime.lanes.announcement import Announcement
from farandole.runtime.lanes.grants import WITHDRAWN, Grant, Grants, Said
from farandole.runtime.lanes.peer_protocol import HEAD, PeerProtocol
from farandole.runtime.lanes.submissions import Submissions
from workbench.peers import rank as model
from workbench.peers.program import JOIN
from workbench.peers.search import PeerSearch, search
from workbench.peers.searches import BOTH, SMALL, job
from workbench.peers.simulation import main, simulate
from workbench.peers.world import PeerSetup

COUNT = 300
"""`make model` plays 100,000."""
WITH_JOINS = [name for name in SMALL if "join" in name and name != "2 ranks, one joins"]
"""Jobs of which one may ask the others to release it; all of them in ``tests/nightly/models``."""


@cache
def found_in(name: str) -> PeerSearch:
    """What the search of a job finds, with nothing planted."""
    return search(SMALL[name])


@pytest.mark.parametrize("name", SMALL)
def test_what_is_promised_holds_in_every_interleaving(name: str) -> None:
    found = found_in(name)
    assert found.fault == ""
    assert found.states > 30
    assert found.ends > 0


@pytest.mark.skipif("PEER_SEED" in os.environ, reason="only one schedule was asked for")
def test_what_is_promised_holds_in_random_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", str(COUNT)]) == 0
    said = capsys.readouterr().out
    assert f"{COUNT:,} schedules" in said
    assert all(end in said for end in ("done", "MismatchError", "AbortError")), said


@pytest.mark.skipif("PEER_SEED" not in os.environ, reason="PEER_SEED=N repeats one schedule")
def test_it_holds_in_the_schedule_that_was_asked_for() -> None:
    assert simulate(int(os.environ["PEER_SEED"])).fault == ""


def test_a_seed_is_a_schedule() -> None:
    assert simulate(3) == simulate(3)
    assert simulate(3) != simulate(4)._replace(seed=3)


def test_the_jobs_come_to_what_they_are_about() -> None:
    """A search that never meets a mismatch, an abort or a grant shows nothing about them."""
    assert "MismatchError" in found_in("2 ranks, another shape").outcomes
    assert "MismatchError" in found_in("2 ranks, one cannot").outcomes
    assert "AbortError" in found_in("2 ranks, one dies").outcomes


# -- planted bugs: each is found by a search, and its way is told ------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def wait_for_nobody_who_withdraws(patch: pytest.MonkeyPatch) -> None:
    def next_round(grant: Grant) -> list[bytes]:
        if not grant.is_open or not all(grant._said):
            return []
        return [said.pop(0) or b"" for said in grant._said]

    patch.setattr(Grant, "next_round", next_round)


def end_a_round_before_all_have_spoken(patch: pytest.MonkeyPatch) -> None:
    def next_round(grant: Grant) -> list[bytes]:
        if any(said and said[0] is WITHDRAWN for said in grant._said):
            grant.is_open = False
        if not grant.is_open or sum(map(bool, grant._said)) < max(1, len(grant._said) - 1):
            return []
        return [said.pop(0) or b"" if said else b"" for said in grant._said]

    patch.setattr(Grant, "next_round", next_round)


def accept_what_is_late(patch: pytest.MonkeyPatch) -> None:
    right = Grants.add_part

    def hear(grants: Grants, rank: int, number: int, said: Said) -> Grant | None:
        if number <= grants._newest and number not in grants._by_number and grants._by_number:
            number = max(grants._by_number)
        return right(grants, rank, number, said)

    patch.setattr(Grants, "add_part", hear)


def forget_what_is_early(patch: pytest.MonkeyPatch) -> None:
    right = Grants.add_part

    def hear(grants: Grants, rank: int, number: int, said: Said) -> Grant | None:
        return right(grants, rank, number, said) if number <= grants._newest else None

    patch.setattr(Grants, "add_part", hear)


def join_without_withdrawing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PeerProtocol, "withdraw_all", lambda peer: setattr(peer, "_has_left", True))


def join_as_soon_as_the_peers_are_through(patch: pytest.MonkeyPatch) -> None:
    """As it was: a round that has ended, of which nothing has been announced yet, held up no join."""

    def may_act(rank: model.Rank) -> bool:
        step = rank.program[rank.at] if rank.at < len(rank.program) else None
        if step is None or step.kind != JOIN or rank.is_joining:
            return right(rank)
        return not rank.peer.awaiting and all(pending.is_offered for pending in rank.submissions.inflight.values())

    right = model.Rank._may_act
    patch.setattr(model.Rank, "_may_act", may_act)


def let_another_shape_go_to_the_peers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Announcement, "fingerprint", property(lambda _: "as ever", lambda *_: None), raising=False)


def keep_a_name_that_all_have_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Submissions, "note_refusal", lambda *_: None)


def tell_a_refusal_to_those_that_asked(patch: pytest.MonkeyPatch) -> None:
    """As it was: who had joined did not count it, and called the next one by another name."""
    right = Negotiation._order

    def order(negotiation: Negotiation, *batch: Any) -> Delivery:
        delivery = right(negotiation, *batch)
        return delivery._replace(ranks=batch[0][0].ready) if delivery.order.error else delivery

    patch.setattr(Negotiation, "_order", order)


def say_nothing_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Submissions, "forget", lambda *_: None)


def obey_the_generation_before(patch: pytest.MonkeyPatch) -> None:
    right = model.Rank._take

    def take(rank: model.Rank, message: Any) -> None:
        right(rank, type(message)(rank.generation, *[getattr(message, f) for f in message.__struct_fields__[1:]]))

    patch.setattr(model.Rank, "_take", take)


def let_a_join_overtake(patch: pytest.MonkeyPatch) -> None:
    """As it was: a rank joined before it had said again what it had named by a number that was forgotten."""
    patch.setattr(PendingResends, "hold", lambda *_: NOBODY)


def withdraw_what_is_given(patch: pytest.MonkeyPatch) -> None:
    def withdraw(peer: PeerProtocol, key: tuple[int, str]) -> None:
        grant = peer._grants.find(key)
        if grant is not None:
            peer._grants.close(grant)
            peer._send_part(grant, WITHDRAWN)

    patch.setattr(PeerProtocol, "withdraw", withdraw)


PLANTED: dict[Plant, PeerSetup] = {
    wait_for_nobody_who_withdraws: SMALL["2 ranks, another shape"],
    end_a_round_before_all_have_spoken: SMALL["3 ranks"],
    accept_what_is_late: job("a2 b", "a b", warm=BOTH),
    forget_what_is_early: job("b b", "b b", warm="a a b wait"),
    join_without_withdrawing: SMALL["2 ranks, one joins"],
    join_as_soon_as_the_peers_are_through: SMALL["2 ranks, one joins while another shape is asked for"],
    let_another_shape_go_to_the_peers: SMALL["2 ranks, another shape"],
    keep_a_name_that_all_have_refused: SMALL["2 ranks, one cannot"],
    tell_a_refusal_to_those_that_asked: SMALL["2 ranks, one cannot while the other has joined"],
    say_nothing_again: SMALL["2 ranks, another shape"],
    obey_the_generation_before: job("a b", "b a", warm="", kills=1, again=("a", "a")),
    let_a_join_overtake: SMALL["2 ranks, one joins, and is asked to say again what it said before"],
    withdraw_what_is_given: job("a a@1", "a", sets=((0,),)),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: str(plant.__name__).replace("_", " "))
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    fault = search(PLANTED[plant]).fault
    assert fault
    assert "\n   1  " in fault, "it says how to come there"


def test_bytes_may_be_cut_anywhere() -> None:
    """What one rank says comes in pieces."""
    order = Order(0, 1, Kind.ALLREDUCE, ["a"], [], direct=1)
    peers = [PeerProtocol(rank, 2, 1) for rank in (0, 1)]
    for peer in peers:
        peer.open(order)
        grant = peer.find((0, "a"))
        assert grant is not None
        peer.contribute(grant, b"four", 0.0)
    [frame] = peers[1].outbox
    assert len(frame) == HEAD.size + 4
    for i in range(len(frame)):
        assert not peers[0].made
        peers[0].receive_bytes(1, frame[i : i + 1])
    assert len(peers[0].take_made()) == 1
    assert not peers[0].awaiting


def _turn_and_release(self: model.Rank, event: Any) -> list[Any]:
    """Take a turn as a rank of the model does, and then, as the lane does where a join has to wait, release."""
    getattr(self, f"_on_{event[0]}")(*event[1:])
    step = self.program[self.at] if self.at < len(self.program) else None
    is_next = step is not None and step.kind == JOIN and not self.is_joining and not self.end
    if self.is_connected and is_next and not self.submissions.may_join():
        self.peer.release()
    return _take_turn(self, ("nothing",))


_take_turn = model.Rank.turn


@pytest.fixture
def releasing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.Rank, "_on_nothing", lambda _: None, raising=False)
    monkeypatch.setattr(model.Rank, "turn", _turn_and_release)


@pytest.mark.usefixtures("releasing")
@pytest.mark.parametrize("name", WITH_JOINS)
def test_it_holds_in_every_interleaving_where_ranks_that_are_to_join_ask_to_be_released(name: str) -> None:
    found = search(SMALL[name])
    assert found.fault == ""
    assert found.ends > 0


@pytest.mark.usefixtures("releasing")
def test_it_holds_in_random_schedules_where_ranks_that_are_to_join_ask_to_be_released() -> None:
    assert main(["0", str(COUNT)]) == 0


@pytest.mark.usefixtures("releasing")
def test_who_is_to_join_and_who_waits_for_the_join_come_to_their_ends() -> None:
    """Without the request, neither does: ``search`` finds no progress."""
    assert search(job("a join", "b wait a join", warm=BOTH)).fault == ""
