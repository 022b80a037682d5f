"""Orders that all ranks obey after the same step, under every interleaving of messages and steps."""

from __future__ import annotations

import random
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from farandole.control.message import Message
from farandole.control.watch_messages import ActAt, Prepare
from farandole.runtime.coordination.rank_set import RankSet
from farandole.runtime.coordination.step_orders import StepOrders


class Rank:
    """A rank as ``StepGate`` behaves; it may train one step further than any other, as collectives let it."""

    def __init__(self) -> None:
        self.step = 0
        self.number = -1
        self.order: ActAt | None = None
        self.paused = self.ended = False
        self.inbox: deque[Message] = deque()
        self.obeyed: list[tuple[str, int]] = []

    @property
    def waits(self) -> bool:
        return self.ended or self.paused or (self.number >= 0 and self.order is None and self.at_gate)

    at_gate = False


class Job:
    """Ranks with queues in both directions; a seeded scheduler picks what happens next."""

    def __init__(self, size: int, chance: random.Random) -> None:
        self.ranks = [Rank() for _ in range(size)]
        self.chance = chance
        self.news: list[tuple[int, str, str, int]] = []
        self.up: list[deque[tuple[str, int, int]]] = [deque() for _ in range(size)]
        self.orders = StepOrders(self.tell, lambda n, verb, state, _, step: self.news.append((n, verb, state, step)))
        self.orders.begin(1, set(range(size)))

    def tell(self, ranks: RankSet, message: Message) -> None:
        for rank in ranks:
            self.ranks[rank].inbox.append(message)

    def turn(self) -> bool:
        """One random thing that can happen; false if nothing can."""
        things = [("up", i) for i, queue in enumerate(self.up) if queue]
        things += [("down", i) for i, rank in enumerate(self.ranks) if rank.inbox]
        least = min(rank.step + rank.at_gate for rank in self.ranks)
        for i, rank in enumerate(self.ranks):
            if rank.at_gate and not rank.waits:
                things.append(("leave", i))
            elif not rank.at_gate and not rank.ended and not rank.paused and rank.step <= least:
                things.append(("step", i))
        if not things:
            return False
        kind, i = self.chance.choice(things)
        getattr(self, f"do_{kind}")(i)
        return True

    def do_up(self, i: int) -> None:
        kind, number, step = self.up[i].popleft()
        getattr(self.orders, kind)(i, number, step)

    def do_down(self, i: int) -> None:
        rank, message = self.ranks[i], self.ranks[i].inbox.popleft()
        if isinstance(message, Prepare):
            rank.number, rank.order = message.number, None
            self.up[i].append(("prepared", message.number, rank.step))
        elif isinstance(message, ActAt):
            rank.number, rank.order = message.number, message
            if rank.paused:
                rank.paused = False
                self.obey(i, message)

    def do_step(self, i: int) -> None:
        """The end of a step: it counts, and then the rank looks at the gate."""
        self.ranks[i].step += 1
        self.ranks[i].at_gate = True

    def do_leave(self, i: int) -> None:
        rank = self.ranks[i]
        rank.at_gate = False
        if rank.order is not None and rank.step >= rank.order.step:
            self.obey(i, rank.order)

    def obey(self, i: int, order: ActAt) -> None:
        rank = self.ranks[i]
        self.up[i].append(("acted", order.number, rank.step))
        rank.obeyed.append((order.verb, rank.step))
        rank.paused, rank.ended = order.verb == "pause", order.verb == "stop"
        rank.number, rank.order = (order.number, order) if rank.paused else (-1, None)


@given(
    st.integers(1, 5),
    st.integers(0, 10**6),
    st.lists(st.sampled_from(["pause", "resume", "checkpoint"]), max_size=6),
)
def test_all_ranks_obey_the_same_orders_after_the_same_steps(size: int, seed: int, verbs: list[str]) -> None:
    job = Job(size, random.Random(seed))
    for number, verb in enumerate([*verbs, "stop"]):
        for _ in range(job.chance.randrange(60)):
            job.turn()
        job.orders.add_order(number, verb)
    for _ in range(20000):
        if all(rank.ended for rank in job.ranks) and not any(job.up):
            break
        assert job.turn(), "nobody can go on, and not all have ended"
    assert all(rank.ended for rank in job.ranks)
    assert len({tuple(rank.obeyed) for rank in job.ranks}) == 1
    acted = [(verb, step) for _, verb, state, step in job.news if state == "acted"]
    assert acted == job.ranks[0].obeyed
    refused = {number for number, _, state, _ in job.news if state == "refused"}
    assert len(acted) + len(refused) == len(verbs) + 1


def test_what_waits_is_obeyed_in_its_order_and_the_last_of_it_says_if_ranks_will_pause() -> None:
    news: list[tuple[int, str]] = []
    orders = StepOrders(lambda _, __: None, lambda number, _v, state, _t, _s: news.append((number, state)))
    orders.begin(1, {0})
    for number, verb in enumerate(["pause", "resume", "pause", "checkpoint", "resume", "checkpoint"]):
        orders.add_order(number, verb)
    assert [number for number, state in news if state == "refused"] == [3]


def test_a_rank_that_leaves_is_waited_for_no_more() -> None:
    said: list[Message] = []
    news: list[tuple[str, int]] = []
    orders = StepOrders(
        lambda _, message: said.append(message), lambda _n, _v, state, _t, step: news.append((state, step))
    )
    orders.begin(1, {0, 1, 2})
    orders.add_order(1, "checkpoint")
    orders.prepared(0, 1, 5)
    orders.prepared(1, 1, 4)
    orders.gone(2)
    assert said[-1] == ActAt(1, 1, "checkpoint", 6)
    orders.acted(0, 1, 6)
    orders.gone(1)
    assert news[-1] == ("acted", 6)


def test_an_order_that_the_end_of_the_generation_overtakes_waits_for_the_next_and_a_pause_goes_on() -> None:
    said: list[Message] = []
    news: list[tuple[int, str]] = []
    orders = StepOrders(lambda _, message: said.append(message), lambda n, _v, state, _t, _s: news.append((n, state)))
    orders.begin(1, {0})
    orders.add_order(1, "pause")
    orders.end()
    orders.begin(2, {0, 1})
    assert said == [Prepare(1, 1), Prepare(2, 1)]
    for rank in (0, 1):
        orders.prepared(rank, 1, 3)
    for rank in (0, 1):
        orders.acted(rank, 1, 4)
    assert news[-1] == (1, "acted")
    orders.end()
    orders.begin(3, {0})
    assert said[-1] == Prepare(3, 1)
    orders.add_order(2, "pause")
    assert news[-1] == (2, "refused")
    orders.add_order(3, "nonsense")
    assert news[-1] == (3, "refused")


def test_a_pause_that_a_rank_in_join_does_not_obey_is_taken_back_by_whoever_resumes() -> None:
    said: list[Message] = []
    news: list[tuple[int, str]] = []
    now_s = [10.0]
    orders = StepOrders(
        lambda _, message: said.append(message),
        lambda n, _v, state, _t, _s: news.append((n, state)),
        lambda: now_s[0],
    )
    orders.begin(1, {0, 1})
    orders.add_order(1, "pause")
    for rank in (0, 1):
        orders.prepared(rank, 1, 100)
    orders.acted(0, 1, 101)
    orders.add_order(2, "resume")  # at once: rank 1 may be about to come
    assert news[-1] == (1, "taken")
    now_s[0] += 6.0
    orders.add_order(3, "stop")
    assert said[-2:] == [ActAt(1, 1, "pause", -1), Prepare(1, 2)]
    assert (1, "refused") in news
    orders.acted(1, 1, 101)  # too late to count
    assert (1, "acted") not in news


def test_an_order_that_meets_no_step_of_a_cell_is_withdrawn_and_none_outlives_the_ranks_session() -> None:
    said: list[Message] = []
    news: list[tuple[int, str]] = []
    orders = StepOrders(lambda _, message: said.append(message), lambda n, _v, state, _t, _s: news.append((n, state)))
    orders.begin(1, {0, 1})
    orders.add_order(1, "stop")
    orders.add_order(2, "checkpoint")  # waits
    orders.prepared(0, 1, 9)
    orders.prepared(1, 1, 9, at_rest=True)
    assert said[1:] == [ActAt(1, 1, "stop", -1), Prepare(1, 2)]
    for rank in (0, 1):
        orders.prepared(rank, 2, 9)
    orders.cell_over(1, 2)  # before step 10, after which it was to be obeyed
    orders.cell_over(0, 2)
    assert said[-2:] == [ActAt(1, 2, "checkpoint", 10), ActAt(1, 2, "checkpoint", -1)]
    orders.add_order(3, "pause")
    for rank in (0, 1):
        orders.prepared(rank, 3, 9)
    for rank in (0, 1):
        orders.acted(rank, 3, 10)
    orders.cell_over(0, 3)  # by an interrupt
    orders.add_order(4, "resume")
    orders.add_order(5, "pause")
    assert news[-4:] == [(3, "taken"), (3, "acted"), (4, "refused"), (5, "taken")]
    orders.end("the session has ended with a cell")
    orders.begin(2, {0, 1})
    assert news[-1] == (5, "refused")
    assert said[-1] == Prepare(1, 5)


def cells_of_two() -> tuple[StepOrders, list[Message], list[tuple[int, str]]]:
    """Orders of two ranks of a notebook, what they were told, and the news."""
    said: list[Message] = []
    news: list[tuple[int, str]] = []
    orders = StepOrders(lambda _, message: said.append(message), lambda n, _v, state, _t, _s: news.append((n, state)))
    orders.begin(1, {0, 1})
    return orders, said, news


def test_an_order_that_one_rank_has_obeyed_stands_though_that_one_ended_its_cell_first() -> None:
    orders, said, news = cells_of_two()
    orders.add_order(1, "stop")
    for rank in (0, 1):
        orders.prepared(rank, 1, 121)
    orders.acted(0, 1, 122)
    orders.cell_over(0, 1)  # while rank 1 is still in the step
    assert said[-1] == ActAt(1, 1, "stop", 122)
    orders.acted(1, 1, 122)
    orders.cell_over(1, 1)
    assert news == [(1, "taken"), (1, "acted")]


def test_an_order_that_came_in_a_pause_which_the_cell_has_ended_is_refused() -> None:
    orders, _, news = cells_of_two()
    orders.add_order(1, "pause")
    for rank in (0, 1):
        orders.prepared(rank, 1, 9)
    for rank in (0, 1):
        orders.acted(rank, 1, 10)
    orders.add_order(2, "resume")  # on its way as an interrupt ends the pause
    orders.cell_over(0, 1)
    orders.cell_over(1, 1)
    assert news[-1] == (2, "refused")
    orders.add_order(3, "stop")
    assert news[-1] == (3, "taken")
