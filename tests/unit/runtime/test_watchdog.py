"""The watchdog of two ranks: what it sends, prints and ends if one waits for the other."""

from __future__ import annotations

from farandole.control.message import Message
from farandole.control.messages import (
    AskProgress,
    AskWaits,
    Blocked,
    GroupMade,
    Hello,
    HostSilent,
    LaneClosed,
    Notice,
    Progress,
    ThreadWait,
    Waits,
    Welcome,
)
from farandole.runtime.controller.watchdog import Watchdog
from farandole.runtime.coordination.after_fault import ALERT_S, LOOK_S
from farandole.runtime.coordination.deadlock import GATHER_S
from farandole.runtime.coordination.downlink import Downlink
from farandole.runtime.coordination.formation import Formed, Member
from farandole.runtime.coordination.generation import Generation
from farandole.runtime.coordination.stall import Limits
from farandole.runtime.coordination.static_formation import StaticFormation
from farandole.settings import Settings


class Kennel:
    """A watchdog, a generation of one rank on host a and one on b, and what the watchdog did."""

    def __init__(self) -> None:
        settings = Settings(stall_warning_s=10.0, stall_shutdown_s=30.0)
        hellos = [Hello("w", rank, 2, "ab"[rank], 100 + rank, "1", ["tcp"], 5, 40, []) for rank in range(2)]
        members = tuple(Member(uid, hello) for uid, hello in zip((b"x", b"y"), hellos, strict=True))
        self.now = 0.0
        self.sent: list[tuple[bytes, Message]] = []
        self.ends: list[tuple[str, str]] = []
        self.printed: list[str] = []
        self.stacks: list[int] = []
        downlink = Downlink(lambda identity, message: self.sent.append((identity, message)))
        self.generation = Generation(Formed(1, members, "tcp", ""), settings, 2)
        downlink.begin(Welcome(1, -1, ["a", "b"], "tcp", ""), [], [(0, b"x"), (1, b"y")])
        self.sent.clear()
        self.dog = Watchdog(
            downlink,
            StaticFormation.of(settings, 2),
            lambda: self.now,
            lambda *end: self.ends.append(end),
            Limits.of(settings),
        )
        self.dog.report = self.printed.append
        self.dog.request_stack = lambda hello: self.stacks.append(hello.pid)

    def due_s(self) -> float | None:
        """Time at which waits are to be reported."""
        return self.dog.after_fault.deadline_s

    def block(self, seconds: float) -> None:
        """Rank 0 reports that it is in a bucket of an optimizer."""
        self.dog.on_blocked(self.generation, 0, Blocked(1, 0, "optimizer.0", 7, "optimizer.0: bucket 1", seconds))


def test_a_stall_is_asked_about_then_printed_then_ended() -> None:
    kennel = Kennel()
    kennel.block(10.0)
    kennel.dog.look(kennel.generation, 0.0)
    assert (kennel.sent, kennel.stacks) == ([(b"yc", AskProgress(1))], [101])
    kennel.dog.on_progress(kennel.generation, 1, Progress(1, "allreduce.loss", ""))
    kennel.generation.stack_arrived(1, 'File "train.py", line 3', 0.0)
    kennel.dog.look(kennel.generation, 0.0)
    (text,) = kennel.printed
    assert "optimizer.0: bucket 1 has waited 10.0 s; missing: rank 1 on b" in text
    assert 'File "train.py", line 3' in text
    kennel.now = 100.0
    kennel.block(110.0)
    kennel.dog.look(kennel.generation, 100.0)
    ((reason, kind),) = kennel.ends
    assert kind == "StallError"
    assert kennel.printed[1:] == [reason]


def test_ranks_in_each_others_way_are_asked_and_then_ended() -> None:
    kennel = Kennel()
    asked = [(b"xc", AskWaits(1, 1)), (b"yc", AskWaits(1, 1))]
    for question, sent, ends in ((0, asked, []), (1, [], ["MismatchError"])):
        for rank, lane in enumerate("ab"):
            wait = ThreadWait(rank, 0, f"{lane}: step 1", lane=lane, sequence=1)
            kennel.dog.on_waits(kennel.generation, rank, Waits(1, [wait], reached=[(0, lane, 1)], question=question))
        kennel.sent.clear()
        kennel.dog.look(kennel.generation, GATHER_S)
        assert kennel.sent == sent
        assert [kind for _, kind in kennel.ends] == ends
    assert kennel.ends[0][0].startswith("deadlock, as all threads of these ranks wait: rank 0 on a in a: step 1")


def test_waits_of_a_second_are_told_after_a_fault_alone() -> None:
    kennel = Kennel()
    notices: list[str] = []
    kennel.dog.notice = notices.append
    kennel.block(2.0)
    kennel.dog.alert(kennel.generation)
    assert kennel.due_s() is None
    assert kennel.sent == []
    kennel.dog.note_fault()
    kennel.dog.alert(kennel.generation)
    assert kennel.sent == [(b"xc", Notice(1, ALERT_S)), (b"yc", Notice(1, ALERT_S))]
    assert kennel.due_s() == LOOK_S
    for now in (LOOK_S, 2 * LOOK_S):  # told once
        kennel.dog.report_waits(kennel.generation, now)
    assert notices == ["waiting after a fault: rank 0 on a for rank 1 on b, 2.5 s so far, in optimizer.0: bucket 1"]
    assert kennel.sent[2:] == [(b"xc", Notice(0, ALERT_S - LOOK_S, notices[0]))]
    assert kennel.printed == []


def test_reports_that_cannot_be_are_counted() -> None:
    kennel = Kennel()
    kennel.dog.on_blocked(kennel.generation, 0, Blocked(1, 9, "optimizer.0", 7, "bucket", 1.0))
    kennel.dog.on_lane_closed(kennel.generation, 0, LaneClosed(1, 9, "optimizer.0", 7))
    kennel.dog.on_group_made(kennel.generation, 0, GroupMade(1, 2**32, [1]))
    kennel.dog.on_host_silent(kennel.generation, 0, HostSilent(1, "c"))
    assert kennel.generation.rejected.total() == 4
    assert (kennel.sent, kennel.printed, kennel.ends) == ([], [], [])
