"""The controller: routes messages between the workers and the state machines that decide.

    controller = Controller(router.send, settings, expected=4, clock=time.monotonic)
    while True:
        router.wait(until controller.deadline())
        while (got := router.recv()) is not None:
            controller.handle(*got)
        if controller.deadline() is due:
            controller.tick(time.monotonic())

``handle`` only records a message. ``tick`` sends the orders for collectives that are ready, after all messages that
have arrived are handled: this is what allows fusion. The owner of the loop reports the exits of workers, and sets
``task``, ``on_result`` and the functions of ``watchdog`` as far as it supports them, all in the one thread of that
loop. No message of a worker can make the controller raise.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

from farandole.control.clock import Stamp
from farandole.control.exits import GenerationEnded, WorkerExited
from farandole.control.message import Message
from farandole.control.messages import (
    Abort,
    Blocked,
    ChangeDue,
    Entry,
    Envelopes,
    Exchange,
    GatheredParts,
    GroupMade,
    Hello,
    HostSilent,
    LaneClosed,
    Leave,
    Orders,
    Progress,
    Ready,
    Resend,
    SetTimeline,
    Submit,
    TimelineSet,
    Waits,
    Welcome,
    Withdraw,
)
from farandole.control.task_messages import FetchTask, TaskResult
from farandole.control.task_pieces import ResultPieces, piece_of
from farandole.control.watch_messages import Acted, CellOver, Metrics, Prepared
from farandole.runtime.controller.inherited_generation import InheritedGeneration
from farandole.runtime.controller.watchdog import Watchdog
from farandole.runtime.controller.watching import Watching
from farandole.runtime.coordination.downlink import CONTROL, ORDERS, Downlink, Send
from farandole.runtime.coordination.formation import Due, EndNow, Formation, Formed
from farandole.runtime.coordination.generation import Generation
from farandole.runtime.coordination.negotiation import Delivery
from farandole.runtime.coordination.process_groups import GLOBAL
from farandole.runtime.coordination.rank_set import RankSet, alike
from farandole.runtime.coordination.stall import Limits
from farandole.runtime.coordination.static_formation import StaticFormation
from farandole.settings import Settings

Clock: TypeAlias = Callable[[], float]

FAREWELL_S = 0.5
"""Longest time by which the ``Leave`` of a worker may arrive after the report of its exit, which takes another path.

The threads that send and receive it may have to wait for a processor. The controller waits only after an exit with code
0 without a ``Leave``.
"""

RELAYED = 10
"""Factor on ``FAREWELL_S`` in jobs with relays, each of which may be busy."""


@final
class Controller:
    """Controller of a job; one thread. Peers are workers and, in large jobs, relays. Elastic jobs pass a formation."""

    def __init__(
        self, send: Send, settings: Settings, expected: int, clock: Clock, formation: Formation | None = None
    ) -> None:
        self.task, self._results = b"", ResultPieces()
        """Payload for workers that request a function to run."""
        self.on_result: Callable[[int, bool, bytes], object] | None = None
        """Called with the result or error of such a function: ``worker_id``, success, payload."""
        self.on_hello: Callable[[Hello], object] = lambda _: None
        """Called for every worker that has called ``init``."""
        self.refuse: Callable[[str, str], object] = lambda _kind, _detail: None
        """Called, by kind, for processes that have the job's key but are not its workers."""
        self._settings, self._expected, self._clock, self._downlink = settings, expected, clock, Downlink(send)
        self._formation = formation or StaticFormation.of(settings, expected)
        self.registry = self._formation.registry.below(self._downlink.is_relayed)
        self.inherited = InheritedGeneration(send, self._formation, clock)  # replaced if there was a controller before
        self.watching = Watching(send, lambda ranks, message: self._send_to_ranks(ranks, CONTROL, message), time.time)
        self.watchdog = Watchdog(self._downlink, self._formation, clock, self.abort, Limits.of(settings))
        self._generation: Generation | None = None
        self._received, self._rejected = 0, Counter[str]()
        self._handlers: dict[type, Callable[[bytes, Any], None]] = {
            Ready: self._on_ready,
            Envelopes: self._on_letters,
            Hello: self._on_hello,
            GatheredParts: self._on_parts,
            Leave: self._on_leave,
            Withdraw: self._on_withdraw,
            FetchTask: self._on_fetch,
            TaskResult: self._on_result,
            Metrics: self._on_metrics,
        }
        self._handlers_of_ranks = self._those_of_ranks()

    def _those_of_ranks(self) -> dict[type, Callable[[Generation, int, Any], None]]:
        """Handlers of messages from ranks of the current generation."""
        return {
            Submit: self._on_submit,
            Exchange: self._on_exchange,
            Blocked: self.watchdog.on_blocked,
            LaneClosed: self.watchdog.on_lane_closed,
            GroupMade: self.watchdog.on_group_made,
            HostSilent: self.watchdog.on_host_silent,
            Progress: self.watchdog.on_progress,
            Waits: self.watchdog.on_waits,
            SetTimeline: self._on_timeline,
            TimelineSet: self._on_timeline_set,
            Prepared: self._on_watched,
            Acted: self._on_watched,
            CellOver: self._on_watched,
        }

    # -- called by the loop -------------------------------------------------------------------------------------------

    def handle(self, identity: bytes, message: Message) -> None:
        """Handle a message from the socket ``identity``."""
        self._received += 1
        if not self.inherited.takes(identity, message):
            self._dispatch(identity, message)

    def worker_started(self, worker_id: int, pid: int, host: str) -> None:
        """Note that a worker runs, so that errors can say where it is if it never calls ``init``."""
        self._formation.started(worker_id, f"rank {worker_id} on {host} (process {pid})")

    def worker_exited(self, event: WorkerExited) -> None:
        """Handle the exit of a worker, with a description for users."""
        now = self._clock()
        self._formation.worker_exited(event)
        generation = self._generation
        rank = None if generation is None else generation.rank_at(event.worker_id, event.pid)
        if generation is not None and rank is not None:
            if event.code:
                generation.remove_rank(rank, event.description)
                self.abort(event.description)
            elif not generation.has_left(rank):
                patience_s = FAREWELL_S * (RELAYED if self._downlink.branches else 1)
                generation.expect_farewell(rank, now + patience_s, event.description)
        self._form(now)

    def worker_lost(self, event: WorkerExited) -> None:
        """Handle a worker that counts as dead without an observed exit; if it still runs, it gets the ``Abort``, too.

        Its host may only have been suspended; the worker would wait forever.
        """
        generation = self._generation
        rank = None if generation is None else generation.rank_at(event.worker_id, event.pid)
        self.worker_exited(event)
        if generation is not None and rank is not None and generation.over is not None:
            for suffix in (CONTROL, ORDERS):
                self._send_to_ranks(RankSet.only(rank), suffix, generation.over)

    def left(self) -> list[int]:
        """``worker_id`` of each worker that has left the current generation or exited, in that order."""
        return self._generation.left() if self._generation is not None else []

    @property
    def is_needed(self) -> bool:
        """True while the current generation has not ended and has ranks left."""
        generation = self._generation
        return generation is not None and generation.over is None and bool(generation.present())

    def stack_arrived(self, worker_id: int, text: str) -> None:
        """Handle the reply to ``watchdog.request_stack``: the stack, or the reason why there is none."""
        if self._generation is not None:
            self._generation.stack_arrived(worker_id, text, self._clock())

    def abort(self, reason: str, kind: str = "AbortError") -> None:
        """End the generation for all ranks still in it."""
        generation = self._generation
        if generation is None:
            self.inherited.end(reason)
        elif generation.over is None:
            self.watchdog.note_fault()
            generation.over = Abort(generation.number, reason, kind)
            self._formation.generation_ended(GenerationEnded(generation.number, reason))
            self.watching.ended(generation.number, reason)
            for suffix in (CONTROL, ORDERS):  # read by two threads, each of which may be waiting
                self._send_to_ranks(generation.present(), suffix, generation.over)

    @property
    def farewell_s(self) -> float | None:
        """Time at which the first ``Leave`` of an exited worker is overdue; ``None`` if none is expected."""
        return None if self._generation is None else self._generation.farewell_s

    def deadline(self) -> float | None:
        """Time at which ``tick`` is due, by ``clock``; ``None`` if there is no deadline."""
        current = self.inherited if self._generation is None else self._generation
        moments = (self._formation.deadline_s, current.deadline_s, self.watchdog.after_fault.deadline_s)
        return min((moment for moment in moments if moment is not None), default=None)

    def tick(self, now: float) -> None:
        """Do what is due."""
        generation = self._generation
        self.inherited.tick(now)
        if generation is not None and (reason := generation.unsaid(now)):
            self.abort(reason)
        if generation is not None and generation.over is None:
            if generation.negotiation.undecided:
                self._order(generation, generation.negotiation.decide(now))
            self.watchdog.look(generation, now)
        if self._formation.deadline_s is not None:
            self._form(now)
        if (notice_s := self.watchdog.after_fault.deadline_s) is not None and notice_s <= now:
            self.watchdog.report_waits(self._generation, now)

    def statistics(self) -> dict[str, int]:
        """Counters of messages received, sent and refused, and counters of the current generation."""
        generation = self._generation
        refused = self._rejected.total() + (generation.rejected.total() if generation else 0)
        own = generation.statistics() if generation is not None else {}
        return {"received": self._received, "sent": self._downlink.sent, "refused": refused, **own}

    # -- messages -----------------------------------------------------------------------------------------------------

    def _dispatch(self, identity: bytes, message: Any) -> None:
        handler, of_rank = self._handlers.get(type(message)), self._handlers_of_ranks.get(type(message))
        if handler is not None:
            handler(identity, message)
        elif of_rank is None:
            self._rejected[f"{type(message).__name__} from a worker"] += 1
        elif (found := self._find(identity, message.generation)) is not None:
            of_rank(*found, message)

    def _on_submit(self, generation: Generation, rank: int, message: Submit) -> None:
        self._submit(generation, [(RankSet.only(rank), message.entry, message.contribution)])

    def _on_ready(self, identity: bytes, message: Ready) -> None:
        generation, present = self._below(identity, message.generation)
        if generation is not None:
            members, shares = self._downlink.members, message.shares
            self._submit(generation, [(members(s.entry.process_set, s.ranks) & present, s.entry, b"") for s in shares])

    def _submit(self, generation: Generation, said: Sequence[tuple[RankSet, Entry, bytes]]) -> None:
        now = self._clock()
        for ranks, entry, contribution in said:
            if forgotten := generation.negotiation.submit(ranks, entry, now, contribution):
                self._send_to_ranks(forgotten, ORDERS, Resend(generation.number, entry.process_set, [entry.name]))
        generation.stall.expect(now)

    def _below(self, relay: bytes, number: int) -> tuple[Generation | None, RankSet]:
        """Generation to which a relay's message belongs, or ``None``, and the present ranks below the relay."""
        generation = self._generation
        if not generation or generation.over or number != generation.number or relay not in self._downlink.branches:
            self._rejected["messages of another generation"] += 1
            return None, RankSet()
        return generation, self._downlink.branches[relay] & generation.present()

    def _on_letters(self, identity: bytes, message: Envelopes) -> None:
        """Handle messages of workers that a relay forwards."""
        for sender, inner in self._downlink.opened(identity, message):
            if inner is None or isinstance(inner, Envelopes | Ready | GatheredParts):
                self._rejected["letters that are not from workers"] += 1
            else:
                self._dispatch(sender, inner)

    def _on_hello(self, identity: bytes, hello: Hello) -> None:
        now, generation = self._clock(), self._generation
        if reason := self._formation.turn_away(identity[:-1], hello):
            self.refuse("processes that are none of the job's workers", reason)
        else:
            rank = None if generation is None else generation.rank_at(hello.worker_id, hello.pid)
            if generation is not None and rank is not None:
                generation.remove_rank(rank)
                self._stop_waiting(generation)
            self._formation.hello(identity[:-1], hello, now)
            self.on_hello(hello)
        self._form(now)

    def _on_exchange(self, generation: Generation, rank: int, message: Exchange) -> None:
        self._gather(generation, message.key, tuple(message.ranks), {rank: message.payload})

    def _on_parts(self, identity: bytes, message: GatheredParts) -> None:
        generation, present = self._below(identity, message.generation)
        if generation is not None:
            parts = {rank: payload for rank, payload in message.parts if rank in present}
            self._gather(generation, message.key, tuple(message.ranks), parts)

    def _gather(self, generation: Generation, key: str, ranks: tuple[int, ...], parts: Mapping[int, bytes]) -> None:
        complete = generation.exchange(key, ranks, parts)
        if complete is None:
            self._stop_waiting(generation)
        else:
            self._send_to_ranks(RankSet.of(ranks), CONTROL, complete)

    def _on_leave(self, identity: bytes, message: Leave) -> None:
        found = self._find(identity, message.generation, ended=True)  # the order of leaving matters after the end, too
        if found is None:
            return
        generation, rank = found
        generation.remove_rank(rank, message.reason, message.following)
        self.watching.left(rank)
        if message.reason:
            self.abort(message.reason, message.kind)
        else:
            self._stop_waiting(generation)
        if message.ending or not message.reason:
            self._formation.left(generation.members[rank].hello.worker_id, message.ending, message.told)

    def _on_withdraw(self, identity: bytes, message: Withdraw) -> None:
        generation = self._generation
        if generation is not None and generation.rank_of(identity[:-1]) is not None:  # the generation formed meanwhile
            self._on_leave(identity, Leave(generation.number, worker_id=message.worker_id, told=True))
        else:
            self._formation.left(message.worker_id, ending=False, told=True)

    def _on_timeline(self, generation: Generation, rank: int, message: SetTimeline) -> None:
        if rank:
            self._rejected["SetTimeline from another rank than 0"] += 1
            return
        self._send_to_ranks(generation.begin_timeline(message.number), CONTROL, message)
        self._answer_timeline(generation)

    def _on_timeline_set(self, generation: Generation, rank: int, message: TimelineSet) -> None:
        generation.timeline.answered(rank, message.number)
        self._answer_timeline(generation)

    def _on_watched(self, _: Generation, rank: int, message: Prepared | Acted | CellOver) -> None:
        self.watching.of_rank(rank, message)

    def _on_metrics(self, identity: bytes, message: Metrics) -> None:
        # Also after the end of a generation, and of ranks that have left it: the last metrics may show the cause.
        generation = self._generation
        rank = None if generation is None else generation.rank_of(identity[:-1])
        if generation is None or rank is None or message.generation != generation.number:
            self._rejected["messages of another generation"] += 1
        else:
            self.watching.of_rank(rank, message)

    def _on_fetch(self, identity: bytes, message: FetchTask) -> None:
        self._downlink.post([identity], piece_of(self.task, message))

    def _on_result(self, identity: bytes, message: TaskResult) -> None:
        if self.on_result is None:
            self._rejected["unexpected Result"] += 1
        elif whole := self._results.add(identity, message):
            self.on_result(whole.worker_id, whole.ok, whole.payload)

    def _find(self, identity: bytes, number: int, ended: bool = False) -> tuple[Generation, int] | None:
        """Generation and rank to which a message belongs; ranks of an ended generation get its ``Abort`` again."""
        generation = self._generation
        rank = None if generation is None else generation.rank_of(identity[:-1])
        if generation is None or rank is None or number != generation.number:
            self._rejected["messages of another generation"] += 1
        elif generation.over is not None and not ended:
            self._rejected["messages after the end of their generation"] += 1
            self._send_to_ranks(RankSet.only(rank), CONTROL, generation.over)
            self._formation.answered(generation.members[rank].hello.worker_id)
        elif generation.has_left(rank):
            self._rejected["messages of ranks that have left"] += 1
        else:
            return generation, rank
        return None

    # -- generations --------------------------------------------------------------------------------------------------

    def _form(self, now: float) -> None:
        """Carry out the decisions of the formation that are due."""
        while (decision := self._formation.decide(now)) is not None:
            if isinstance(decision, Formed):
                self._begin(decision)
            elif isinstance(decision, EndNow):
                self.abort(decision.reason)
            elif not isinstance(decision, Due):
                self._downlink.post([member.uid + CONTROL for member in decision.members], decision.answer)
            elif self._generation is not None:
                self._send_to_ranks(
                    self._generation.present(), CONTROL, ChangeDue(self._generation.number, decision.reason)
                )

    def _begin(self, formed: Formed) -> None:
        self.inherited.replace()
        self._generation = Generation(formed, self._settings, self._expected)
        self._generation.stall.begin(self._clock())
        self._downlink.begin(
            Welcome(formed.generation, -1, formed.hosts, formed.engine, formed.reason, Stamp.now()),
            formed.static_sets,
            [(rank, member.uid) for rank, member in enumerate(formed.members)],
        )
        self.watching.formed(formed.generation, formed.hosts)
        self.watchdog.alert(self._generation)

    def _stop_waiting(self, generation: Generation) -> None:
        """End waits for ranks that have left, except in the negotiated lane: exchanges and timeline requests."""
        if reason := generation.exchange_without():
            self.abort(reason)
        self._answer_timeline(generation)

    def _answer_timeline(self, generation: Generation) -> None:
        """Reply to rank 0 after all ranks have started or stopped their timelines."""
        number = generation.timeline.finished()
        if number is not None:
            self._send_to_ranks(RankSet.only(0), CONTROL, TimelineSet(generation.number, number))

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def _order(self, generation: Generation, deliveries: Sequence[Delivery]) -> None:
        """Send each rank its orders in one message; ranks with the same orders get the same message."""
        for delivery in deliveries:
            self._downlink.note(delivery.order)
        if any(delivery.order.error for delivery in deliveries):
            self.watchdog.note_fault()
            self.watchdog.alert(generation)
        for ranks, which in alike([delivery.ranks for delivery in deliveries]):
            self._send_to_ranks(ranks, ORDERS, Orders(generation.number, [deliveries[i].order for i in which]))

    def _send_to_ranks(self, ranks: RankSet, suffix: bytes, message: Message) -> None:
        self._downlink.send_to_ranks(GLOBAL, ranks, suffix, message)
