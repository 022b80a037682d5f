"""Fence of a run: a controller forms a generation only while its leader is the last one in the leader log.

    fence = LeaderFence(terms, formation, settings, address)      # publishes the controller's address
    fence.fd                                # wakes the loop
    fence.turn(now)                         # starts claimed generations; "" or why this leader must end
    fence.superseded                        # True if another leader is the reason
    fence.close()

One fence per controller; only the loop's thread calls it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from farandole.control.addresses import own_endpoints
from farandole.elastic.membership.actions import Form
from farandole.launch.hosts.leader_log import LeaderEntry, LeaderMember
from farandole.launch.job.leader_thread import UNSURE_S, LeaderThread
from farandole.launch.job.leadership import Leadership
from farandole.settings import Settings

if TYPE_CHECKING:
    from farandole.elastic.membership.formation import ElasticFormation

CLOSE_S = 1.0
"""Time for the thread to end."""


@final
class LeaderFence:
    """Fence of a controller at ``address``; a claim without an answer is given up after ``elastic_timeout_s``."""

    def __init__(self, terms: Leadership, formation: ElasticFormation, settings: Settings, address: str) -> None:
        self._term, self._formation, self._patience_s = terms.term, formation, settings.elastic_timeout_s
        self.begins_s = terms.term.begins_s
        """Time before which this leader starts no workers of its own."""
        self.lead_patience_s = terms.limits.lead_patience_s
        """How long leases wait for the next leader."""
        addresses = own_endpoints(address, settings.network_interface)
        self._thread = LeaderThread(terms.folder, terms.contact(addresses, settings))
        self._claims_since_s: float | None = None
        formation.claim = self._claim

    @property
    def fd(self) -> int:
        """Descriptor that is readable when ``turn`` has something to do."""
        return self._thread.fd

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``turn`` gives up."""
        return None if self._claims_since_s is None else self._claims_since_s + self._patience_s

    @property
    def superseded(self) -> bool:
        """True after another leader has taken over."""
        return bool(self._thread.superseded)

    def is_sure(self, now: float) -> bool:
        """True if the leader log was checked within ``UNSURE_S``; False, for example, after a stop of this process."""
        return now - self._thread.sure_s < UNSURE_S

    @property
    def sure_s(self) -> float:
        """Last time at which this leader was certainly the current one."""
        return self._thread.sure_s

    @property
    def why_over(self) -> str:
        """Sentence that names the new leader; "" while this one leads."""
        return self._thread.superseded

    def look(self) -> None:
        """Check the leader log now, in the thread; ``fd`` becomes readable with the result."""
        self._thread.look()

    def turn(self, now: float) -> str:
        """Start the generations whose claims are in the log; return why this leader must end, or ""."""
        for generation in self._thread.claimed():
            self._claims_since_s = None
            self._formation.claimed(generation)
        if self._thread.superseded:
            return self._thread.superseded
        due_s = self.deadline_s
        if due_s is None or now < due_s:
            return ""
        return f"the run folder has not answered for {self._patience_s:g} s, and no generation is formed without it"

    def close(self) -> None:
        """End the thread."""
        self._formation.claim = None
        self._thread.close(CLOSE_S)

    def _claim(self, action: Form) -> None:
        self._claims_since_s = time.monotonic()
        membership = self._formation.membership
        slots = [(worker_id, membership.workers[worker_id].slot) for worker_id in action.worker_ids]
        members = tuple(LeaderMember(worker_id, slot.host, slot.index) for worker_id, slot in slots)
        entry = LeaderEntry(self._term.epoch, action.generation, members, membership.next_worker_id)
        self._thread.claim(entry)
