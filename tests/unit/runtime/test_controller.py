"""The controller by its messages: who is told what, and when. Time is a number, and sending is a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.collective import DType, Kind
from farandole.control import messages, task_messages
from farandole.control.agent_messages import Report
from farandole.control.exits import WorkerExited
from farandole.control.message import Message
from farandole.control.messages import (
    Abort,
    AskProgress,
    Blocked,
    Entry,
    Exchange,
    Exchanged,
    Hello,
    LaneClosed,
    Leave,
    Notice,
    Orders,
    Progress,
    Signature,
    Submit,
    Welcome,
)
from farandole.control.watch_messages import MetricPoint, Metrics, RankMetrics, WatchJob
from farandole.runtime.controller.controller import FAREWELL_S, Controller
from farandole.settings import Settings

M = TypeVar("M", bound=Message)
SIGNATURE = Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[3]])
LEFT = "rank 1 on a has called shutdown(), or its script has ended"


class Job:
    """A controller, its clock, what it sent, and workers with one-letter names that say hello in order."""

    def __init__(self, size: int = 2, **settings: Any) -> None:
        self.now = 0.0
        self.size = size
        self.sent: list[tuple[bytes, Message]] = []
        self.reports: list[str] = []
        self.stacks: list[Hello] = []
        self.notices: list[tuple[str, Notice]] = []
        self.controller = Controller(self.send, Settings(**settings), size, lambda: self.now)
        self.controller.watchdog.report = self.reports.append
        self.controller.watchdog.request_stack = self.stacks.append

    def send(self, identity: bytes, message: Message) -> bool:
        messages.encode(message)
        self.sent.append((identity, message))
        return True

    def hello(self, worker_id: int, uid: str = "", **more: Any) -> None:
        said: dict[str, Any] = {
            "worker": "", "worker_id": worker_id, "expected": self.size, "host": "a", "pid": 100 + worker_id,
            "version": "1", "engines": ["solo", "shm"], "stack_fd": 5, "stack_signal": 40, "process_sets": [],
        }  # fmt: skip
        self.say(uid or "xyz"[worker_id], Hello(**{**said, **more}))

    def form(self, **more: Any) -> None:
        for worker_id in range(self.size):
            self.hello(worker_id, **more)
        self.take()

    def say(self, uid: str, message: Message) -> None:
        self.controller.handle(uid.encode() + b"u", message)
        self.tick()

    def submit(self, uid: str, name: str = "n", process_set: int = 0, generation: int = 1) -> None:
        self.say(uid, Submit(generation, Entry(process_set, name, signature=SIGNATURE)))

    def tick(self) -> None:
        for _ in range(9):
            due = self.controller.deadline()
            if due is None or due > self.now:
                return
            self.controller.tick(self.now)
        raise AssertionError(f"tick({self.now}) leaves something due")

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.tick()

    def take(self) -> list[tuple[str, Message]]:
        """Everything that was sent since the last time, but for ``notices``."""
        sent, self.sent = [(identity.decode(), message) for identity, message in self.sent], []
        self.notices += [(to, message) for to, message in sent if isinstance(message, Notice)]
        return [(to, message) for to, message in sent if not isinstance(message, Notice)]

    def only(self, kind: type[M]) -> list[tuple[str, M]]:
        """Everything of this kind that was sent since the last time; nothing else may have been."""
        taken = self.take()
        assert all(isinstance(message, kind) for _, message in taken), taken
        return taken  # type: ignore[return-value]


def errors(orders: Sequence[tuple[str, Orders]]) -> list[tuple[str, str]]:
    return [(to, order.error_kind) for to, message in orders for order in message.orders]


def test_everybody_is_welcomed_with_rank_hosts_and_engine() -> None:
    job = Job()
    job.hello(1)
    assert job.take() == []
    job.hello(0)
    assert [(to, message.rank, message.hosts, message.engine) for to, message in job.only(Welcome)] == [
        ("xc", 0, ["a", "a"], "shm"),
        ("yc", 1, ["a", "a"], "shm"),
    ]


def test_one_that_never_comes_is_named_with_its_process() -> None:
    job = Job(start_timeout_s=30.0)
    job.controller.worker_started(1, 77, "a")
    job.hello(0)
    assert job.controller.deadline() == 30.0
    job.wait(30.0)
    ((to, refuse),) = job.only(messages.Refuse)
    assert to == "xc"
    assert refuse.reason.startswith("rank 1 on a (process 77) has not called init() within 30 s")
    assert job.controller.deadline() is None


def test_an_engine_that_not_all_have_is_refused_to_all() -> None:
    job = Job(engine="tcp")
    job.hello(0)
    job.hello(1)
    assert all("tcp" in refuse.reason for _, refuse in job.only(messages.Refuse))


def test_a_collective_is_ordered_when_all_are_ready_in_one_message_for_each() -> None:
    job = Job()
    job.form()
    for uid in "xy":
        job.submit(uid)
    told = job.only(Orders)
    assert [to for to, _ in told] == ["xo", "yo"]
    assert told[0][1] is told[1][1]


def test_what_arrives_together_is_fused_and_sets_get_their_own_part_in_one_order() -> None:
    job = Job(3)
    job.form(process_sets=[[0, 1]])
    job.submit("x", "mine", 1)
    for uid in "xyz":
        for entry in [(0, "a"), (0, "b"), (1, "mine")][: 3 if uid == "y" else 2]:
            job.controller.handle(uid.encode() + b"u", Submit(1, Entry(*entry, signature=SIGNATURE)))
    job.tick()
    told = {to: [order.names for order in message.orders] for to, message in job.only(Orders)}
    assert told == {"xo": [["mine"], ["a", "b"]], "yo": [["mine"], ["a", "b"]], "zo": [["a", "b"]]}


def test_a_forgotten_number_is_asked_for_again() -> None:
    job = Job()
    job.form()
    job.say("x", Submit(1, Entry(0, "n", 5)))
    assert job.only(messages.Resend) == [("xo", messages.Resend(1, 0, ["n"]))]


@pytest.mark.parametrize(("code", "kind"), [(1, Welcome), (0, messages.Refuse)])
def test_a_job_may_start_without_one_that_failed_if_it_is_told_to_go_on(code: int, kind: type[Message]) -> None:
    job = Job(on_failure="continue")
    job.controller.worker_exited(WorkerExited(1, code, f"rank 1 on a exited with {code}", pid=101))
    job.hello(0)
    assert [to for to, _ in job.only(kind)] == ["xc"]


# -- leaving and dying ------------------------------------------------------------------------------------------------


def test_a_death_is_told_to_all_others_at_once_on_both_sockets() -> None:
    job = Job(3)
    job.form()
    job.controller.worker_exited(
        WorkerExited(1, -9, "rank 1 on a was killed by SIGKILL", pid=4242)
    )  # a shell around process 101
    told = job.only(Abort)
    assert sorted(to for to, _ in told) == ["xc", "xo", "zc", "zo"]
    assert {message for _, message in told} == {Abort(1, "rank 1 on a was killed by SIGKILL")}
    job.submit("x")
    assert job.only(Abort) == [("xc", told[0][1])]


def test_who_leaves_is_missed_only_by_those_who_need_it() -> None:
    job = Job(3)
    job.form(process_sets=[[0, 1]])
    job.say("z", Leave(1))
    job.controller.worker_exited(WorkerExited(2, 0, "rank 2 on a exited with 0", pid=102))
    job.wait(FAREWELL_S)
    assert job.take() == []
    for uid in "xy":
        job.submit(uid, process_set=1)
    assert errors(job.only(Orders)) == [("xo", ""), ("yo", "")]
    job.submit("x")
    [orders] = [orders for to, orders in job.only(Orders) if to == "xo"]
    assert "rank 2 on a has called shutdown()" in orders.orders[0].error


def test_leaving_in_the_middle_of_a_collective_ends_it_for_all() -> None:
    job = Job()
    job.form()
    job.say("y", Leave(1, "rank 1 on a could not go on: no memory"))
    assert {message.reason for _, message in job.only(Abort)} == {"rank 1 on a could not go on: no memory"}


def test_the_others_raise_the_error_that_a_script_has_ended_with_where_it_is_everybodys() -> None:
    job = Job()
    job.form()
    job.say("y", Leave(1, "the ranks differ", ending=True, kind="MismatchError"))
    assert {(message.kind, message.reason) for _, message in job.only(Abort)} == {("MismatchError", "the ranks differ")}


def test_an_end_without_a_word_ends_it_for_all_unless_the_word_is_on_its_way() -> None:
    for farewell in (True, False):
        job = Job()
        job.form()
        job.controller.worker_exited(WorkerExited(1, 0, "rank 1 on a exited with 0", pid=101))
        assert job.controller.farewell_s is not None
        if farewell:
            job.say("y", Leave(1))
            assert job.controller.farewell_s is None  # it is waited for no longer
        job.wait(FAREWELL_S)
        told = {message.reason for _, message in job.only(Abort)}
        assert told == (set() if farewell else {"rank 1 on a exited with 0 without calling shutdown()"})


def test_survivors_form_the_next_generation_and_the_last_ones_messages_are_dropped() -> None:
    job = Job(3)
    job.form()
    job.controller.worker_exited(WorkerExited(0, 1, "rank 0 on a exited with 1", pid=100))
    job.take()
    job.hello(2, "r")
    job.hello(1, "q")
    assert [(to, m.generation, m.rank) for to, m in job.only(Welcome)] == [("qc", 2, 0), ("rc", 2, 1)]
    before = job.controller.statistics()["refused"]
    job.submit("y")
    job.submit("q", generation=1)
    assert job.take() == []
    assert job.controller.statistics()["refused"] == before + 2
    for uid in "qr":
        job.submit(uid, generation=2)
    assert errors(job.only(Orders)) == [("qo", ""), ("ro", "")]


def test_the_last_numbers_of_all_ranks_are_passed_on_when_their_generation_is_over() -> None:
    job = Job(2)
    job.controller.watching.handle_viewer_message(b"w", WatchJob(0.2, 10**6))
    job.form()
    job.say("y", Leave(1, "rank 1 on a gave up: ValueError", ending=True))
    job.take()
    for rank, uid in enumerate("xy"):
        job.say(uid, Metrics(1, [MetricPoint(1.0, 7, 0, {"loss": 1.0})]))
        assert [message.rank for _, message in job.only(RankMetrics)] == [rank]
    before = job.controller.statistics()["refused"]
    for stranger, generation in (("x", 2), ("z", 1)):
        job.say(stranger, Metrics(generation, []))
    assert job.take() == []
    assert job.controller.statistics()["refused"] == before + 2


def test_shutdown_and_init_by_all_makes_a_new_generation_many_times() -> None:
    job = Job()
    job.form()
    for number in range(1, 20):
        before, after = ("xy", "pq") if number % 2 else ("pq", "xy")
        job.say(before[0], Leave(number))
        job.hello(0, after[0])
        job.say(before[1], Leave(number))
        job.hello(1, after[1])
        assert [(to, m.generation, m.rank) for to, m in job.only(Welcome)] == [
            (f"{after[0]}c", number + 1, 0),
            (f"{after[1]}c", number + 1, 1),
        ]


def test_saying_hello_again_without_a_leave_is_one() -> None:
    job = Job()
    job.form()
    job.submit("x")
    job.hello(1, "q")
    assert errors(job.only(Orders)) == [("xo", "AbortError")]


def test_an_exchange_brings_everybodys_bytes_in_the_order_of_its_ranks() -> None:
    job = Job(3)
    job.form()
    for uid, rank in (("z", 2), ("x", 0)):
        job.say(uid, Exchange(1, "k", [2, 0, 1], b"from %d" % rank))
        job.say(uid, Exchange(1, "other", [2, 0, 1], b"-"))
    assert job.take() == []
    job.say("y", Exchange(1, "k", [2, 0, 1], b"from 1"))
    answer = Exchanged(1, "k", [b"from 2", b"from 0", b"from 1"])
    assert job.only(Exchanged) == [("xc", answer), ("yc", answer), ("zc", answer)]


def test_an_exchange_with_a_rank_that_has_left_ends_the_generation() -> None:
    job = Job()
    job.form()
    job.say("x", Exchange(1, "k", [0, 1], b""))
    job.say("y", Leave(1))
    assert {message.reason for _, message in job.only(Abort)} == {LEFT}


@pytest.mark.parametrize("ranks", [[], [1], [0, 0], [0, 7], [0, -1]])
def test_exchanges_among_impossible_ranks_are_counted(ranks: list[int]) -> None:
    job = Job()
    job.form()
    job.say("x", Exchange(1, "k", ranks, b""))
    assert job.take() == []
    assert job.controller.statistics()["refused"] == 1


# -- stalls -----------------------------------------------------------------------------------------------------------


def test_a_stall_is_asked_about_reported_and_ended() -> None:
    job = Job(stall_warning_s=10.0, stall_shutdown_s=30.0)
    job.form()
    job.submit("x", "allreduce.loss")
    job.wait(10.0)
    assert job.only(AskProgress) == [("yc", AskProgress(1))]
    assert [(hello.worker_id, hello.pid, hello.stack_signal, hello.stack_fd) for hello in job.stacks] == [
        (1, 101, 40, 5)
    ]
    job.say("y", Progress(1, "allreduce.acc", ""))
    job.controller.stack_arrived(1, 'File "train.py", line 3')
    job.tick()
    (report,) = job.reports
    assert "allreduce 'loss' has waited 10.0 s; missing: rank 1 on a" in report
    assert "last finished allreduce.acc, and is outside Farandole" in report
    assert 'File "train.py", line 3' in report
    job.wait(20.0)
    told = [message for _, message in job.take() if isinstance(message, Abort)]
    assert len(told) == 4
    assert {message.kind for message in told} == {"StallError"}
    assert "missing: rank 1 on a" in told[0].reason


def test_a_stall_of_the_planned_lane_is_reported_too() -> None:
    job = Job(stall_warning_s=10.0)
    job.form()
    job.say("x", Blocked(1, 0, "p", 7, "step 7", 10.0))
    assert [to for to, _ in job.only(AskProgress)] == ["yc"]
    job.wait(1.0)
    assert "step 7 has waited 11.0 s; missing: rank 1 on a" in job.reports[0]


def test_waiting_in_the_planned_lane_for_a_rank_that_left_ends_the_generation() -> None:
    job = Job()
    job.form()
    job.say("y", Leave(1))
    job.say("x", Blocked(1, 0, "p", 7, "step 7", 60.0))
    assert {message.reason for _, message in job.only(Abort)} == {LEFT}


def test_waiting_in_a_lane_that_another_rank_has_given_up_ends_the_generation_with_the_reason() -> None:
    job = Job()
    job.form()
    for rank, uid in enumerate("xy"):
        job.say(uid, LaneClosed(1, 0, "optimizer.0", 7 + rank))
        job.say(uid, LaneClosed(1, 3 + rank, "no such set", 7))
    job.say("x", Blocked(1, 0, "optimizer.0", 9, "optimizer.0: step 9", 0.1))
    assert job.take() == [], "both have given up that one"
    job.say("x", LaneClosed(1, 0, "optimizer.1", 7))
    job.say("x", Blocked(1, 0, "optimizer.1", 9, "optimizer.1: step 9", 0.1))
    job.say("y", Blocked(1, 0, "optimizer.1", 7, "optimizer.1: step 7", 0.1))
    assert job.take() == [], "who has closed it has been there"
    job.say("y", Blocked(1, 0, "optimizer.1", 8, "optimizer.1: step 8", 0.1))
    told = job.only(Abort)
    assert {(message.kind, to) for to, message in told} == {
        ("MismatchError", each) for each in ("xc", "xo", "yc", "yo")
    }
    assert told[0][1].reason.startswith("rank 1 on a is in optimizer.1: step 8, but the script of rank 0 on a has drop")


def test_an_idle_job_has_nothing_to_wake_up_for() -> None:
    job = Job(stall_warning_s=10.0)
    job.form()
    for uid in "xy":
        job.submit(uid)
    job.wait(10.0)
    assert job.controller.deadline() is None
    assert not job.reports


def test_the_inspector_can_be_turned_off() -> None:
    job = Job(stall_check=False)
    job.form()
    job.submit("x")
    assert job.controller.deadline() is None


def test_tasks_and_results_are_passed_on() -> None:
    job = Job()
    results: list[tuple[int, bool, bytes]] = []
    job.controller.task = b"pickled"
    job.controller.handle(b"task-1", task_messages.FetchTask(1))
    assert job.only(task_messages.TaskPayload) == [("task-1", task_messages.TaskPayload(b"pickled"))]
    job.controller.handle(b"task-1", task_messages.TaskResult(1, True, b"r"))
    job.controller.on_result = lambda *result: results.append(result)
    job.controller.handle(b"task-1", task_messages.TaskResult(1, True, b"r"))
    assert results == [(1, True, b"r")]


small = st.integers(-2, 4)
sockets = st.sampled_from([b"xu", b"yu", b"zu", b"", b"u", b"\xff"])
text = st.sampled_from(["", "n", "k"])
signatures = st.builds(Signature, small, st.lists(small, max_size=2), st.lists(st.lists(small, max_size=2), max_size=2))
entries = st.builds(Entry, small, text, small, st.none() | signatures)
peers: list[st.SearchStrategy[Message]] = [
    st.builds(
        Hello, text, small, small, st.just("a"), st.integers(100, 103), st.just("1"),
        st.just(["shm", "solo"]), small, small, st.lists(st.lists(small, max_size=2), max_size=1),
    ),
    st.builds(Submit, small, entries, st.binary(max_size=5)),
    st.builds(Exchange, small, text, st.lists(small, max_size=3), st.binary(max_size=2)),
    st.builds(Leave, small, text),
    st.builds(Blocked, small, small, text, small, text, st.floats()),
    st.builds(LaneClosed, small, small, text, small),
    st.builds(Progress, small, text, text),
    st.builds(messages.SetTimeline, small, small, text),
    st.builds(messages.TimelineSet, small, small),
    st.builds(task_messages.TaskResult, small, st.booleans(), st.binary(max_size=2)),
    st.builds(task_messages.FetchTask, small),
    st.builds(Welcome, small, small, st.just([]), text, text),
    st.builds(Report, st.builds(WorkerExited, small, small, text, text, small, text)),
    st.builds(messages.Ready, small, st.lists(st.builds(messages.SharedEntry, entries, st.lists(small, max_size=4)))),
]  # fmt: skip
letters = st.lists(st.builds(messages.Envelope, sockets, st.one_of(peers).map(messages.encode) | st.binary(max_size=3)))
moves = st.one_of(
    st.tuples(sockets | st.just(b"relay-b"), st.one_of(peers) | letters.map(messages.Envelopes)),
    st.tuples(st.just(None), st.floats(0, 700)),
    st.tuples(st.just("exit"), st.tuples(small, st.integers(100, 103), small)),
)


@given(st.lists(moves, max_size=25), st.booleans())
def test_nothing_that_comes_can_break_it(job_events: list[tuple[Any, Any]], formed: bool) -> None:
    job = Job(start_timeout_s=30.0)
    if formed:
        job.form()
    for who, what in job_events:
        if who is None:
            job.wait(what)
        elif who == "exit":
            job.controller.worker_exited(WorkerExited(what[0], what[2], "it has ended", pid=what[1]))
        else:
            job.controller.handle(who, what)
        job.tick()


# -- after a fault ----------------------------------------------------------------------------------------------------


def shown(job: Job) -> list[tuple[str, str]]:
    """Which text was shown to whom."""
    job.take()
    return [(to, notice.text) for to, notice in job.notices if notice.text]


def test_after_a_fault_a_wait_of_a_second_is_told_once() -> None:
    job = Job()
    job.form()
    job.submit("x", "allreduce.loss")
    job.wait(5.0)
    assert not job.reports, "nothing has gone wrong"
    job.say("y", Submit(1, Entry(0, "allreduce.loss", signature=Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[4]]))))
    orders = [(to, message) for to, message in job.take() if isinstance(message, Orders)]
    assert errors(orders) == [("xo", "MismatchError"), ("yo", "MismatchError")]
    for name in ("allreduce.b", "allreduce.c"):
        job.submit("x", name)
    job.wait(0.9)
    assert not job.reports
    job.wait(0.6)
    text = "waiting after a fault: rank 0 on a for rank 1 on a, 1.5 s so far, in allreduce 'b', allreduce 'c'"
    assert job.reports == [text]
    assert shown(job) == [("xc", text)]
    job.wait(30.0)
    assert job.reports == [text]
    job.wait(30.0)
    job.submit("x", "allreduce.d")
    job.wait(5.0)
    assert [each for each in job.reports if not each.startswith("stalled")] == [text], "the fault is long ago"


def test_ranks_of_the_next_generation_report_short_waits_too_and_so_is_one_in_init() -> None:
    job = Job(stall_warning_s=60.0)
    job.form()
    job.say("y", Leave(1, "rank 1 on a gave up: the cell raised KeyError"))
    job.take()
    job.hello(0)
    job.wait(1.5)
    (text,) = job.reports
    assert text == "waiting after a fault: rank 0 on a for rank 1, 1.5 s so far, in init()"
    assert shown(job) == [("xc", text)]
    job.notices.clear()
    job.hello(1)
    job.take()
    assert [(to, notice.alert_s) for to, notice in job.notices] == [("xc", 58.5), ("yc", 58.5)]
    job.reports.clear()
    job.say("x", Blocked(2, 0, "p", 7, "step 7", 1.0))
    job.wait(0.5)
    assert job.reports == ["waiting after a fault: rank 0 on a for rank 1 on a, 1.5 s so far, in step 7"]
    job.reports.clear()
    job.say("x", Blocked(2, 0, "p", 8, "step 8", 0.9))
    job.wait(1.1)
    assert not job.reports, "it was not said again, so it is over"


def test_whoever_wants_no_stall_check_is_told_of_no_wait() -> None:
    job = Job(stall_check=False)
    job.form()
    job.say("y", Leave(1, "it failed"))
    job.hello(0)
    job.wait(5.0)
    assert not job.reports
