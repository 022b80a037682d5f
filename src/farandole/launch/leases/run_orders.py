"""Orders of users to a run with leases, from arrival to reply; without any I/O.

    orders = RunOrders(obey, send)
    orders.queue_order(b"person-1", RunOrder("scale", 8), now)
    orders.turn(now, sure_s, over="", is_read=True)     # obeys or refuses orders
    orders.written(tag, "")                             # this order is in the journal: its sender gets the reply
    orders.deadline_s                                   # time at which ``turn`` is due

An order is obeyed only after a check of the leader log that began after the order arrived and found no later leader: a
leader that was suspended may find orders older than its successor. Every order but ``stop`` also waits for the journal,
which holds the plan that the order changes. The sender gets a reply within twice ``ANSWER_S``; a refused order is never
obeyed later.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, final

from farandole.control.run_messages import ANSWER_S, RunOrder, RunReply

STOP_S = 2.0
"""Time after which ``stop`` is obeyed even if the folder has not shown who leads: the user wants the end now."""

END = "stop"
"""Verb of the order that ends the run."""


class Obeyed(NamedTuple):
    """Result of an order: the reply, and whether the reply waits until the order is on disk."""

    reply: RunReply
    is_written: bool = False


class _Waiting(NamedTuple):
    came_s: float
    identity: bytes
    order: RunOrder


class _Unconfirmed(NamedTuple):
    since_s: float
    identity: bytes
    text: str


@final
class RunOrders:
    """Orders sent to one controller. ``obey`` gets an order and the tag that ``written`` is called with later."""

    def __init__(self, obey: Callable[[RunOrder, bytes], Obeyed], send: Callable[[bytes, RunReply], object]) -> None:
        self._obey, self._send = obey, send
        self._waiting: list[_Waiting] = []
        self._unconfirmed: dict[bytes, _Unconfirmed] = {}
        self._has_new = False

    def queue_order(self, identity: bytes, order: RunOrder, now: float) -> None:
        """Queue an order that has arrived."""
        self._waiting.append(_Waiting(now, identity, order))
        self._has_new = True

    def has_new(self) -> bool:
        """True if orders have arrived since the last call: the caller must check the leader log."""
        had, self._has_new = self._has_new, False
        return had

    def turn(self, now: float, sure_s: float, over: str, *, is_read: bool) -> None:
        """Obey or refuse orders. This leader was the last one at ``sure_s``; ``over``: why it leads no more, or ""."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            is_end = each.order.verb == END
            is_sure = sure_s >= each.came_s or (is_end and now >= each.came_s + STOP_S)
            if over:
                self._send(each.identity, RunReply(False, over))
            elif is_sure and (is_read or is_end):
                self._take_in(each, now)
            elif now >= each.came_s + ANSWER_S:
                self._send(each.identity, RunReply(False, _refusal(each.order, is_sure)))
            else:
                self._waiting.append(each)
        for tag, late in list(self._unconfirmed.items()):
            if now >= late.since_s + ANSWER_S:
                del self._unconfirmed[tag]
                why = f"it is not on the disk after {ANSWER_S:g} s"
                self._send(late.identity, RunReply(True, unsafe(late.text, why)))

    def written(self, tag: bytes, why: str) -> None:
        """Reply to the sender of an order that is in the journal, or that could not be written (``why``)."""
        found = self._unconfirmed.pop(tag, None)
        if found is not None:
            self._send(found.identity, RunReply(True, unsafe(found.text, why) if why else found.text))

    def close(self) -> None:
        """Refuse all waiting orders, and reply to those whose line may not be on the disk: the run is over."""
        for each in self._waiting:
            self._send(each.identity, RunReply(False, "the run is over"))
        for late in self._unconfirmed.values():
            self._send(late.identity, RunReply(True, unsafe(late.text, "the run is over, and it is not on the disk")))
        self._waiting.clear()
        self._unconfirmed.clear()

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``turn`` has a reply to send even if no message arrives."""
        limits = (each.came_s + (STOP_S if each.order.verb == END else ANSWER_S) for each in self._waiting)
        return min((*limits, *(each.since_s + ANSWER_S for each in self._unconfirmed.values())), default=None)

    def _take_in(self, waiting: _Waiting, now: float) -> None:
        tag = secrets.token_bytes(8)
        reply, is_written = self._obey(waiting.order, tag)
        if is_written:
            self._unconfirmed[tag] = _Unconfirmed(now, waiting.identity, reply.text)
        else:
            self._send(waiting.identity, reply)


def not_recorded(reply: RunReply, folder: Path) -> RunReply:
    """Reply to an order that is obeyed, and that the journal in ``folder`` does not take."""
    return RunReply(True, unsafe(reply.text, f"{folder} takes nothing"))


def unsafe(text: str, why: str) -> str:
    """Reply to an order that is obeyed but not recorded, so that the next controller would not know it."""
    return f"{text}. Give the order again if the controller is replaced, which will not know it: {why}"


def _refusal(order: RunOrder, is_sure: bool) -> str:
    what = "its journal cannot be read" if is_sure else "it is not known whether another leader has taken over"
    return (
        f"the order {order.verb!r} is not obeyed: the run folder has not answered for {ANSWER_S:g} s, so {what}. "
        "The training goes on; give the order again once the folder answers"
    )
