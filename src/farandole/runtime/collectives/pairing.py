"""Pairing of objects (optimizers) that ranks create independently, by names: the order of creation may differ.

    agreed = pairing(session, process_set).pair(session, Unpaired("optimizer 1f83.0", names), is_known)

A rank that wants to connect an optimizer sends its label, and goes on when all members have sent the same label. They
send labels in rounds, each an exchange among all members through the controller. If one thread of each rank uses one
optimizer after the other, the first round has the result.

Any thread may pair; one thread at a time leads a round, for all waiting threads. Threads of two ranks may arrive in
different orders, so a round without result is repeated: when this rank wants a new label, or after ``PAUSE_S``, because
another rank may want one. Rounds end when no further thread can arrive, or none arrived for long enough. Labels that
differ only in number are then paired (a rank has one more optimizer, and does not use it); else all members raise.

Threads. ``_changed`` guards ``_wanted``, ``_threads``, ``_found`` and ``_leader``. It is not held in an exchange, which
waits for other ranks: meanwhile threads may arrive or withdraw. So a round works on the copy of ``_wanted`` that it has
sent, and ``_settle`` drops labels that were withdrawn since. ``_rounds`` and ``_since_s`` belong to the leading thread.
All members get the same result in each round, because they decide from the exchanged data and not by clocks of their
own: exchanges are numbered, and the next exchange would otherwise have no counterpart.

A signal handler may run on top of any line. If its thread pairs already, it would wait for itself, and is refused. If
the handler raises, its thread gives up its label and the lead: ``_leader`` is a thread id for this reason.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

from farandole.errors import AbortError, FarandoleError, MismatchError
from farandole.runtime.collectives.verbs import number_of
from farandole.runtime.coordination.blocked_reports import PAIRING
from farandole.runtime.lanes.lane import interrupted
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.session.process_sets import ProcessSet

if TYPE_CHECKING:
    from farandole.runtime.session.init import Session

PAUSE_S = 0.1
UNKNOWN_S = 5.0
"""Seconds that ranks wait for other ranks that have not even created the optimizer to connect."""

_SHOWN = 6
Said: TypeAlias = Mapping[str, Any]

_pairings: weakref.WeakKeyDictionary[Session, dict[tuple[int, ...], Pairing]] = weakref.WeakKeyDictionary()
_lock = threading.RLock()  # reentrant: a signal handler may run while its thread holds it


def pairing(session: Session, process_set: ProcessSet) -> Pairing:
    """The pairing of this session among the members of ``process_set``, of which this process is one."""
    number = number_of(process_set)
    with _lock:  # two first threads must get the same pairing
        known = _pairings.setdefault(session, {})
        return known.setdefault((number, *process_set.ranks), Pairing(number, process_set.ranks))


@final
@dataclass(frozen=True)
class Unpaired:
    """Candidate for pairing under ``label``; ``names``: names of its parts, in this rank's order."""

    label: str
    names: tuple[str, ...]

    @property
    def order(self) -> str:
        """A digest of the names in their order."""
        return hashlib.blake2b(repr(self.names).encode(), digest_size=8).hexdigest()


@final
class Pairing:
    """Pairing among the members of one process set, in one session, for any thread; see the module.

    ``clock`` measures the seconds that ranks wait for others.
    """

    def __init__(self, number: int, ranks: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._number, self._ranks, self._clock = number, ranks, clock
        self._changed = threading.Condition()
        self._wanted: dict[str, Unpaired] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._found: dict[str, Unpaired | Exception] = {}
        self._leader = 0
        self._pairs = Reentry()
        self._rounds = 0
        self._since_s: float | None = None
        """Time since which rounds have had no result; ``None`` while they have results."""

    def pair(
        self, session: Session, candidate: Unpaired, is_known: Callable[[str], bool] = lambda _: False
    ) -> Unpaired:
        """Pair ``candidate`` with those of all members; returns it with the names in the order of the first member.

        ``is_known`` returns whether this rank could also pair a label. Raises ``MismatchError`` on every member if
        their names are not the same, or if they wait for each other with different labels.
        """
        label = candidate.label
        if self._pairs.here():
            raise interrupted(f"connecting {label}", f"connecting {', '.join(self._wanted) or 'another optimizer'}")
        with self._pairs:
            try:
                with self._changed:
                    self._wanted[label], self._threads[label] = candidate, threading.current_thread()
                    self._changed.notify_all()  # a leader that pauses between two rounds begins the next one at once
                found = self._await(label, lambda: self._lead(session, is_known))
            except BaseException:
                with self._changed:
                    self._forget(label)
                    self._found.pop(label, None)
                raise
        if isinstance(found, Exception):
            raise found
        return found

    def _await(self, label: str, lead: Callable[[], None]) -> Unpaired | Exception:
        """Wait for the result for ``label``; ``lead`` rounds if no other thread does."""
        me = threading.get_ident()
        while True:
            try:
                with self._changed:
                    # Without a limit: the leader's exchange has one, and its ``finally`` wakes all.
                    self._changed.wait_for(lambda: label in self._found or not self._leader)
                    if label in self._found:
                        return self._found.pop(label)
                    self._leader = me
                lead()
            finally:
                with self._changed:
                    if self._leader == me:
                        self._leader = 0
                        self._changed.notify_all()

    def withdraw(self, label: str) -> None:
        """Raise ``AbortError`` in the thread that waits with ``label``, after its round: no rank will pair it."""
        with self._changed:
            if label in self._wanted:
                self._settle(label, AbortError(f"{label}: other ranks do not have this optimizer any more"))

    def _lead(self, session: Session, is_known: Callable[[str], bool]) -> None:
        try:
            self._round(session, is_known)
        except FarandoleError:
            raise
        except BaseException as error:  # from a handler, as for Ctrl-C: the others may be in any exchange
            session.end.abort(f"connecting {', '.join(self._wanted)} was interrupted by {type(error).__name__}")
            raise

    def _round(self, session: Session, is_known: Callable[[str], bool]) -> None:
        """Lead one round: an exchange of labels, then the results, or a pause if there are none."""
        with self._changed:
            mine = dict(self._wanted)
            waiting = set(self._threads.values())
        waited_s = 0.0 if self._since_s is None else self._clock() - self._since_s
        said = self._exchange(
            session, {"wanted": {k: c.order for k, c in mine.items()}, "free": _may_come(waiting), "waited_s": waited_s}
        )
        common = sorted(set.intersection(*(set(each["wanted"]) for each in said)))
        for label in common:
            orders = {each["wanted"][label] for each in said}
            found = mine[label] if len(orders) == 1 else self._agree(session, label, mine[label])
            with self._changed:
                self._settle(label, found)
        if common:
            self._since_s = None
            return
        if not all(each["wanted"] for each in said):
            return  # some rank has withdrawn everything: all ranks see it, and none begins the next exchange
        self._since_s = self._clock() - waited_s
        everything = sorted(set().union(*(each["wanted"] for each in said)))
        known = self._exchange(session, {"known": [k for k in everything if k in mine or is_known(k)]})
        hoped = set.intersection(*(set(each["known"]) for each in known))
        limit_s = max(UNKNOWN_S, session.settings.stall_warning_s) if hoped else UNKNOWN_S
        # The first member's time counts for all: by their own clocks, only some members might give up.
        if said[0]["waited_s"] > limit_s or not any(each["free"] for each in said):
            self._give_up(session, mine)
            return
        with self._changed:  # still leading: otherwise waiting threads would begin the next round at once
            self._changed.wait_for(lambda: self._wanted.keys() != mine.keys(), PAUSE_S)

    def _agree(self, session: Session, label: str, mine: Unpaired) -> Unpaired | Exception:
        """Agree on the first member's order of names; an error if the names differ. Collective."""
        every = [each["names"] for each in self._exchange(session, {"names": mine.names})]
        if any(sorted(names) != sorted(every[0]) for names in every):
            return MismatchError(f"{label}: {self._difference(session, every)}")
        return Unpaired(label, tuple(every[0]))

    def _give_up(self, session: Session, mine: Mapping[str, Unpaired]) -> None:
        """Settle a round after which no label can become common: pair labels of one kind, or raise. Collective."""
        said = self._exchange(session, {"wanted": {label: each.names for label, each in mine.items()}})
        parts = [label.rpartition(".") for each in said for label in each["wanted"]]
        is_one_kind = len({stem for stem, _, _ in parts}) == 1 and all(number[0].isdigit() for _, _, number in parts)
        if is_one_kind and all(len(each["wanted"]) == 1 for each in said):
            [(own, candidate)] = mine.items()
            numbers = dict.fromkeys(number for _, _, number in parts)
            found = self._agree(session, f"{parts[0][0]}.{'+'.join(numbers)}", candidate)
            with self._changed:
                self._since_s = None
                self._settle(own, found)
            return
        names = [[name for part in each["wanted"].values() for name in part] for each in said]
        who = "; ".join(f"{self._name(session, i)} with {', '.join(each['wanted'])}" for i, each in enumerate(said))
        text = f"ranks wait for each other with different optimizers: {who}. {self._difference(session, names)}"
        with self._changed:
            self._since_s = None
            for label in mine:
                self._settle(label, MismatchError(text))

    def _difference(self, session: Session, every: Sequence[Sequence[str]]) -> str:
        """Describe the parameters that some member lacks."""
        lacking: dict[str, list[str]] = {}
        for name in dict.fromkeys(name for names in every for name in names):
            ranks = [self._name(session, i) for i, names in enumerate(every) if name not in set(names)]
            if ranks:
                lacking.setdefault(", ".join(ranks), []).append(name)
        if not lacking:
            return (
                "Their parameters have the same names: make the optimizers of equal models in the same order on every "
                "rank, and use them in one order"
            )
        each = "; ".join(
            f"{ranks} lacks {', '.join(map(repr, names[:_SHOWN]))}"
            + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
            for ranks, names in lacking.items()
        )
        return f"{each}. Build the same model and optimizer on every rank, and give its parameters the same names"

    def _settle(self, label: str, found: Unpaired | Exception) -> None:
        if self._forget(label):
            self._found[label] = found
            self._changed.notify_all()

    def _forget(self, label: str) -> bool:
        self._threads.pop(label, None)
        return self._wanted.pop(label, None) is not None

    def _exchange(self, session: Session, payload: Said) -> list[Said]:
        self._rounds += 1
        key = f"pairing of process set {self._number}.{self._rounds}"
        # ``_wanted`` without the lock: ``join`` copies it in one step, and the text is only for reports.
        what = f"connecting {', '.join(self._wanted)}"
        with session.planned.lane(self._number, PAIRING, sequence=self._rounds - 1).next(what, needs_all=True):
            return [
                json.loads(each) for each in session.planned.exchange(self._number, key, json.dumps(payload).encode())
            ]

    def _name(self, session: Session, member: int) -> str:
        rank = self._ranks[member]
        return f"rank {rank} on {session.topology.hosts[rank]}"


def _may_come(waiting: set[threading.Thread]) -> bool:
    """True if a thread besides those ``waiting`` may arrive; threads of Farandole itself never pair."""
    return any(not each.name.startswith("farandole") for each in threading.enumerate() if each not in waiting)
