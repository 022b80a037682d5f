"""Watchdog of a job: acts on ranks that wait for others, in collectives and in ``init``.

    watchdog = Watchdog(downlink, formation, time.monotonic, controller.abort, Limits.of(settings))
    watchdog.on_blocked(generation, 0, Blocked(1, 0, "optimizer.0", 7, "optimizer.0: bucket 1", seconds=30.0))
    watchdog.look(generation, now)              # asks for stacks, reports a stall, ends a stall or a deadlock
    watchdog.report_waits(generation, now)      # after a fault

State machines decide: ``stall`` and ``deadlock``, which belong to a generation, and ``after_fault``, which outlives it.
Here are the messages that follow from their decisions. The controller calls it, in its only thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import final

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
    Waits,
)
from farandole.runtime.coordination.after_fault import AfterFault
from farandole.runtime.coordination.deadlock import Deadlock, DeadlockCheck
from farandole.runtime.coordination.downlink import CONTROL, Downlink
from farandole.runtime.coordination.formation import Formation
from farandole.runtime.coordination.generation import Generation
from farandole.runtime.coordination.process_groups import GLOBAL
from farandole.runtime.coordination.rank_set import RankSet
from farandole.runtime.coordination.stall import Limits, StackRequest, StallReport, StallVerdict

logger = logging.getLogger("farandole.controller")


@final
class Watchdog:
    """Watchdog of a job; ``end`` ends the current generation, with a reason and the name of the error to raise."""

    def __init__(
        self,
        downlink: Downlink,
        formation: Formation,
        clock: Callable[[], float],
        end: Callable[[str, str], object],
        limits: Limits,
    ) -> None:
        self.request_stack: Callable[[Hello], object] = lambda _: None
        """Request the Python stack of the worker with this ``Hello``; ``Controller.stack_arrived`` takes the reply."""
        self.report: Callable[[str], object] = logger.warning
        """Print a text for users."""
        self.notice: Callable[[str], object] | None = None
        """The same for waits after a fault, if they go elsewhere than ``report``: in notebooks, to the live view."""
        self._downlink, self._formation, self._clock, self._end = downlink, formation, clock, end
        self.after_fault = AfterFault(limits.warning_s > 0)
        """``report_waits`` is due at its ``deadline_s``."""

    # -- messages of ranks --------------------------------------------------------------------------------------------

    def on_blocked(self, generation: Generation, rank: int, message: Blocked) -> None:
        """Handle a report of a rank that is inside of a collective for long."""
        now = self._clock()
        if not generation.blockages.add(rank, message, now):
            generation.rejected["Blocked in an impossible place"] += 1
            return
        if message.step_s:
            self._formation.longest_step(generation.members[rank].hello.worker_id, message.step_s)
        reason = generation.gone_among(generation.negotiation.groups.get(message.process_set) or ())
        if reason:
            self._end(reason, "AbortError")
        elif refusal := generation.closed_lanes.refusal(rank, message) or generation.crossed(now):
            self._end(refusal, "MismatchError")
        else:
            generation.stall.hurry(now)

    def on_lane_closed(self, generation: Generation, rank: int, message: LaneClosed) -> None:
        """Handle the end of a planned lane on one rank: ranks that enter it from now on wait in vain."""
        if not generation.closed_lanes.add(rank, message):
            generation.rejected["LaneClosed in an impossible place"] += 1

    def on_group_made(self, generation: Generation, rank: int, message: GroupMade) -> None:
        """Handle a group that ranks made without the controller, whose members may wait for each other from now on."""
        if rank not in message.ranks or not generation.negotiation.groups.adopt(message.process_set, message.ranks):
            generation.rejected["GroupMade that cannot be"] += 1

    def on_host_silent(self, generation: Generation, rank: int, message: HostSilent) -> None:
        """Handle the report that an engine receives nothing from a host: give up that host, or the rank's own."""
        if message.host not in generation.hosts:
            generation.rejected["HostSilent of a host without ranks"] += 1
        else:
            self._give_up(generation, *generation.parted(rank, message.host))

    def on_progress(self, generation: Generation, rank: int, message: Progress) -> None:
        """Handle the progress of a rank: a heartbeat, or the reply to ``AskProgress``."""
        generation.stall.answered(rank, message, self._clock())

    def on_waits(self, generation: Generation, rank: int, message: Waits) -> None:
        """Handle the waits of all threads of a rank."""
        generation.deadlocks.add_waits(rank, message, self._clock())

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def look(self, generation: Generation, now: float) -> None:
        """Look for stalls and deadlocks, if that is due."""
        if (stall_s := generation.stall.deadline_s) is not None and stall_s <= now:
            self._look_for_stall(generation, now)
        if (due_s := generation.deadlocks.due_s) is not None and due_s <= now:
            self._look_for_deadlock(generation, now)

    def report_waits(self, generation: Generation | None, now: float) -> None:
        """After a fault, tell users which ranks wait for which: in the job's output, and in notebook cells."""
        alert_s = self.after_fault.left_s(now)
        for text, uid in self.after_fault.look(now, self._formation, generation):
            (self.notice or self.report)(text)
            self._downlink.post([uid + CONTROL], Notice(0, alert_s, text))

    def note_fault(self) -> None:
        """Report waits for a while from now on: a generation has ended, or ranks receive an error."""
        self.after_fault.fault(self._clock())

    def alert(self, generation: Generation) -> None:
        """Make ranks report short waits if there was a fault recently."""
        if alert_s := self.after_fault.left_s(self._clock()):
            self._send(generation.present(), Notice(generation.number, alert_s))

    # -- actions ------------------------------------------------------------------------------------------------------

    def _look_for_stall(self, generation: Generation, now: float) -> None:
        step = generation.stall.look(now, generation.waiting(now), generation.negotiation.last)
        if isinstance(step, StackRequest):
            self._send(RankSet.of(step.ranks), AskProgress(generation.number))
            for rank in step.ranks:
                self.request_stack(generation.members[rank].hello)
        elif isinstance(step, StallReport):
            self.report(step.text)
        elif isinstance(step, StallVerdict):
            self._give_up(generation, step.missing, step.reason, "StallError")

    def _look_for_deadlock(self, generation: Generation, now: float) -> None:
        step = generation.deadlocks.look(now)
        if isinstance(step, DeadlockCheck):
            self._send(RankSet.of(step.ranks), AskWaits(generation.number, step.question))
        elif isinstance(step, Deadlock) and not generation.negotiation.end_crossed(RankSet.of(step.ranks)):
            self._end(step.reason, "MismatchError")  # an error: an elastic job would deadlock again

    def _give_up(self, generation: Generation, ranks: Sequence[int], reason: str, kind: str = "AbortError") -> None:
        """Give up ``ranks``: the other ranks go on without them, or the generation ends."""
        if not self._formation.stalled(generation.worker_ids(ranks), reason):
            self.report(reason)
            self._end(reason, kind)

    def _send(self, ranks: RankSet, message: AskProgress | AskWaits | Notice) -> None:
        self._downlink.send_to_ranks(GLOBAL, ranks, CONTROL, message)
