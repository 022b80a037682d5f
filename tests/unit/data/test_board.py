"""The board of a stager, alone and with those of other hosts: no piece twice, no wait for ever, no byte too much."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.staging.board import PATIENCE_WITH_HOSTS, SHARED, Board, Fetch, PieceState
from farandole.data.staging.protocol import HostEntry
from tests.support.data.staging_hosts import Hosts, entry

SIZES = np.array([10, 20, 30, 40], np.int64)


def board(limit: int = 100, held: tuple[int, ...] = (), route: tuple[str, ...] = (SHARED,), **more: object) -> Board:
    made = Board(SIZES, limit, held)
    made.assign(lambda _: route, [0, 1, 2, 3], kept=range(4))
    return made


def taken(of: Board, now: float = 0.0) -> Fetch:
    task = of.next_fetch(now)
    assert task is not None
    return task


def test_what_somebody_waits_for_goes_first() -> None:
    made = board()
    made.demand(2)
    made.demand(1)
    assert [taken(made).piece for _ in range(4)] == [2, 1, 0, 3]
    assert made.next_fetch(0.0) is None


def test_only_what_is_waited_for_where_all_are_busy() -> None:
    made = board()
    assert made.next_fetch(0.0, is_idle=False) is None
    made.demand(3)
    assert taken(made).piece == 3


def test_a_source_that_fails_is_followed_by_the_next_one() -> None:
    made = board(route=("node1", SHARED))
    made.demand(0)
    first = taken(made)
    made.failed(first, "gone")
    second = taken(made)
    assert (first.source, second.source) == ("node1", SHARED)
    assert made.failure_of(0, "node1") == "gone"
    made.failed(second, "I/O error")
    assert made.state_of(0) is PieceState.FAILED
    assert made.error_of(0) == "node1: gone; shared storage: I/O error"
    made.demand(0)  # somebody wants it after all
    assert taken(made).source == "node1"


def test_an_attempt_that_stands_still_is_late_and_one_that_moves_is_not() -> None:
    made = board(route=(SHARED, "node2"))
    made.demand(0)
    task = taken(made, 0.0)
    for now in range(0, 200, 20):
        made.moved(task, now)
        assert made.late(now + 25.0, 30.0) == []
    assert made.late(300.0, 30.0) == [task]
    other = taken(made, 300.0)
    assert other.source == "node2"
    assert made.late(300.0 + 30.0 * PATIENCE_WITH_HOSTS, 30.0) == [task]
    assert made.finished(task)
    assert not made.finished(other)
    assert (made.used, made.held) == (10, {0})


def test_while_shared_storage_stands_still_it_is_asked_last_and_others_are_told() -> None:
    made = board(route=(SHARED, "node2"))
    made.demand(0)
    task = taken(made, 0.0)
    made.late(31.0, 30.0)
    assert "it does not answer" in made.failure_of(0, SHARED)
    assert made.failure_of(3, SHARED) == "it does not answer"
    assert "cannot read it" in made.refusal(3, "node9", "node1")
    made.demand(1)
    assert {taken(made, 31.0) for _ in range(2)} == {Fetch(0, "node2", 2), Fetch(1, "node2", 3)}
    made.moved(task, 40.0)
    assert made.failure_of(0, SHARED) == ""
    assert made.refusal(3, "node9", "node1") == ""


def test_sources_are_asked_once_more_where_all_of_them_are_late() -> None:
    made = board(route=(SHARED, "node2"))
    made.demand(0)
    taken(made, 0.0)
    made.late(31.0, 30.0)
    made.failed(taken(made, 31.0), "it does not answer there either")
    assert made.next_fetch(31.0, is_idle=False) is None
    made.late(62.0, 30.0)
    assert taken(made, 62.0).source == "node2"


def test_two_hosts_that_ask_each_other_do_not_wait_for_each_other() -> None:
    made = board(route=("node2", SHARED))
    made.demand(0)
    taken(made)
    assert "asks for it, too" in made.refusal(0, "node2", "node1")
    assert made.refusal(0, "node2", "node3") == ""
    assert made.refusal(0, "node4", "node1") == ""


def streaming(limit: int, kept: tuple[int, ...] = (), window: int = 1) -> Board:
    """A board whose pieces stream in the order of their numbers, but for those to keep."""
    made = Board(SIZES, limit, ())
    streamed = {piece: piece for piece in range(4) if piece not in kept}
    made.assign(lambda _: (SHARED,), [0, 1, 2, 3], kept=kept, streamed=streamed, window=window)
    return made


def test_room_is_made_of_what_no_worker_needs_any_more() -> None:
    made = streaming(limit=80, kept=(0,))
    for piece in (0, 1, 2):
        made.finished(taken(made))
        made.opened(piece)
        assert piece in made.held
    assert made.next_fetch(0.0) is None  # there is no room for the last one
    made.passed(2)
    assert taken(made).piece == 3
    assert made.room_for(3) == [1]


def test_a_stream_without_room_holds_up_no_piece_that_stays() -> None:
    made = streaming(limit=90, kept=(3,))
    first = [taken(made) for _ in range(3)]
    assert [task.piece for task in first] == [0, 1, 3]  # 2 would take the room of 3
    for task in first:
        made.finished(task)
    assert made.next_fetch(0.0) is None
    made.passed(1)
    assert taken(made).piece == 2


def test_what_is_needed_last_goes_first_and_for_what_is_needed_first() -> None:
    made = Board(SIZES, 70, (3, 2))  # from the epoch before
    made.assign(lambda _: (SHARED,), [0, 1, 2, 3], kept=(), streamed={0: 0, 1: 1, 2: 2, 3: 3})
    task = taken(made)
    assert (task.piece, made.room_for(0)) == (0, [3])
    made.forget(3)
    made.finished(task)
    made.finished(taken(made))
    assert made.held == {0, 1, 2}
    assert made.next_fetch(0.0) is None  # 3 is needed after all of these


def test_what_went_before_its_use_is_fetched_again_in_its_turn() -> None:
    made = Board(SIZES, 70, (3, 2))  # from the epoch before
    made.assign(lambda _: (SHARED,), [0, 1, 2, 3], kept=(), streamed={0: 0, 1: 1, 2: 2, 3: 3})
    task = taken(made)
    made.forget(3)  # for 0
    made.finished(task)
    made.finished(taken(made))
    made.passed(2)
    assert taken(made).piece == 3


def test_opened_pieces_go_only_for_one_that_is_waited_for() -> None:
    made = streaming(limit=60)
    for piece in (0, 1, 2):
        made.finished(taken(made))
        made.opened(piece)
    assert made.room_for(3) is None
    made.demand(3)
    assert made.room_for(3) == [0, 1, 2]


def test_a_piece_that_went_after_its_use_is_read_in_rows_until_they_are_as_many_bytes() -> None:
    made = streaming(limit=60)
    assert not made.is_used(1)
    made.demand(1)
    made.finished(taken(made))
    assert made.is_used(1)
    made.opened(1)
    made.forget(1)
    made.read_rows(1, 19)
    assert made.is_used(1)
    made.read_rows(1, 1)
    assert not made.is_used(1)
    made.demand(1)
    made.finished(taken(made))
    assert made.is_used(1)


def test_without_word_of_the_training_pieces_are_over_some_windows_after_their_use() -> None:
    sizes = np.full(12, 10, np.int64)
    made = Board(sizes, 120, range(12))
    made.assign(lambda _: (SHARED,), range(12), kept=(), streamed={piece: piece for piece in range(12)}, window=2)
    made.opened(10)
    assert [piece for piece in range(12) if made.is_over(piece)] == [0, 1]
    made.passed(5)
    made.passed(4)
    assert [piece for piece in range(12) if made.is_over(piece)] == [0, 1, 2, 3, 4]


def test_a_piece_that_is_waited_for_waits_for_room() -> None:
    made = Board(SIZES, 50, ())
    made.assign(lambda _: (SHARED,), [], kept=[], streamed={0: 0, 1: 1, 2: 2, 3: 3}, window=2)
    made.demand(0)
    made.demand(1)
    first, _ = taken(made), taken(made)
    made.demand(2)
    assert made.next_fetch(0.0) is None
    made.finished(first)
    assert made.next_fetch(0.0) is None  # its worker has yet to open it
    made.opened(0)
    assert taken(made).piece == 2
    assert made.room_for(2) == [0]


def test_a_cache_without_room_is_no_fault_of_the_sources() -> None:
    made = board(route=(SHARED, "node2"))
    made.demand(3)
    made.failed(taken(made), "No space left on device", is_crowded=True)
    assert (made.state_of(3), made.crowded) == (PieceState.FAILED, {3})
    made.demand(3)
    assert made.crowded == set()


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 9))
def test_hosts_read_each_piece_once_in_all(seed: int, hosts: int, pieces: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.randint(1, 50) for _ in range(pieces)]
    room = chance.choice([sum(sizes), sum(sizes) // hosts + 3 * max(sizes), 2 * sum(sizes)])
    held = [[piece for piece in range(pieces) if chance.random() < 0.2] for _ in range(hosts)]
    names = [f"node{number}" for number in range(hosts)]
    entries = [entry(name, room, has, pieces) for name, has in zip(names, held, strict=True)]
    simulated = Hosts(sizes, entries, chance)
    for _ in range(10):
        simulated.need(chance.choice(names), chance.randrange(pieces))
    simulated.run()
    plan = simulated.assignments[names[0]].plan
    assert all(state is PieceState.HELD for _, _, state in simulated.answers)
    if room >= sum(sizes):  # else a host may have to drop what another is yet to copy
        nobody = set(range(pieces)) - {piece for has in held for piece in has}
        assert simulated.reads == dict.fromkeys(nobody, 1)
        for column, name in enumerate(plan.names):
            assert simulated.boards[name].held >= set(np.flatnonzero(plan.copies[:, column]).tolist())


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 9), st.sampled_from([0.1, 0.5, 1.0]))
def test_whatever_fails_nobody_waits_for_ever(seed: int, hosts: int, pieces: int, failing: float) -> None:
    chance = random.Random(seed)
    sizes = [chance.randint(1, 50) for _ in range(pieces)]
    names = [f"node{number}" for number in range(hosts)]
    rooms = [chance.randint(3 * max(sizes), 2 * sum(sizes) + 3 * max(sizes)) for _ in names]
    entries = [entry(name, room, [], pieces) for name, room in zip(names, rooms, strict=True)]
    stalled = [name for name in names if chance.random() < 0.4]
    simulated = Hosts(sizes, entries, chance, failing=failing, stalled=stalled, heal_s=chance.uniform(1, 500))
    for _ in range(15):
        simulated.need(chance.choice(names), chance.randrange(pieces))
    simulated.run()


@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(2, 9))
def test_a_stalled_host_keeps_no_piece_from_the_others(seed: int, hosts: int, pieces: int) -> None:
    chance = random.Random(seed)
    names = [f"node{number}" for number in range(hosts)]
    room = chance.choice([10 * pieces, 10 * pieces // hosts + 30])
    entries = [entry(name, room, [], pieces) for name in names]
    simulated = Hosts([10] * pieces, entries, chance, stalled=names[:1], heal_s=1000.0)
    for _ in range(15):
        simulated.need(chance.choice(names), chance.randrange(pieces))
    ended: list[float] = []
    settle = simulated._settle

    def note() -> None:
        before = len(simulated.answers)
        settle()
        ended.extend([simulated.now] * (len(simulated.answers) - before))

    simulated._settle = note  # type: ignore[method-assign]
    simulated.run()
    assert max(ended, default=0.0) < 120.0


@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(1, 6))
def test_generations_may_follow_while_pieces_are_on_their_way(seed: int, hosts: int, pieces: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.randint(1, 50) for _ in range(pieces)]
    names = [f"node{number}" for number in range(hosts)]

    def entries() -> list[HostEntry]:
        return [
            entry(name, 2 * sum(sizes), [piece for piece in range(pieces) if chance.random() < 0.3], pieces)
            for name in names
        ]

    simulated = Hosts(sizes, entries(), chance)
    for each in simulated.boards.values():  # what they said they had, they have lost
        for piece in list(each.held):
            each.forget(piece)
    for generation in range(2, 5):
        simulated._at(generation * 0.7, partial(simulated.assign, entries(), generation))
    for _ in range(10):
        simulated.need(chance.choice(names), chance.randrange(pieces))
    simulated.run()
