"""Leadership of a run that takes leases: the limits of the run, and the term of its current leader.

terms = Leadership.of(folder, settings)
terms = terms.lead(["python", "train.py"], 3.0)      # from now on no earlier leader forms a generation
terms.term.epoch, terms.term.past       # its number, and the generation that it may adopt
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import final

import msgspec

from farandole.control.keys import new_secret
from farandole.elastic.membership.job_events import LeadReplaced, MemberSlot
from farandole.errors import UsageError
from farandole.launch.hosts.leader_log import LeaderEntry, LeaderLog
from farandole.launch.hosts.leased_hosts import is_lent
from farandole.launch.hosts.run_folder import NoLeaderError, RunContact, RunFolder
from farandole.launch.job.leader_thread import LOOK_S
from farandole.launch.leases.job_arrays import LeaseSupply, limits_in, read_supply
from farandole.launch.leases.limits import LeaseLimits
from farandole.settings import Settings

APART_S = 3 * LOOK_S
"""Pause before a leader that adopts no workers starts any: a previous leader that still runs has checked and exited."""

IDS_APART = 1000
"""A leader numbers its workers from the next multiple of this: how many its predecessor started is unknown."""


@final
class LeaderTerm(msgspec.Struct, frozen=True):
    """Term of one leader: its ``epoch``, the job's ``secret``, and the last generation of its predecessor (``past``).

    ``training``: digest of what must not change if the next leader is to adopt the workers. The leader starts no worker
    of its own before ``begins_s`` (``time.monotonic``).
    """

    epoch: int
    secret: str
    training: str = ""
    past: LeaderEntry = LeaderEntry(0)
    begins_s: float = 0.0

    def adopted(self) -> LeadReplaced:
        """Event that gives a membership the past generation."""
        seats = tuple(MemberSlot(each.worker_id, each.host, each.slot) for each in self.past.members)
        first = (self.past.next_worker_id // IDS_APART + 1) * IDS_APART
        return LeadReplaced(self.past.generation, seats, first)


@final
class Leadership(msgspec.Struct, frozen=True):
    """Leadership of a run: its ``folder``, and the ``supply`` and ``limits`` of its leases as read at the start.

    ``term``: the term of this leader, after ``lead``.
    """

    folder: RunFolder
    supply: LeaseSupply
    limits: LeaseLimits
    term: LeaderTerm = LeaderTerm(0, "")

    @classmethod
    def of(cls, folder: RunFolder, settings: Settings) -> Leadership:
        """Read the folder of a run; raises ``UsageError`` for invalid files."""
        supply = read_supply(folder)
        return cls(folder, supply, limits_in(folder, supply, settings.min_np, settings.max_np))

    def lead(self, command: Sequence[str], host_timeout_s: float) -> Leadership:
        """Become leader of the run and adopt its workers; raises ``UsageError`` where that is impossible.

        Workers that run another ``command`` are not adopted: they train something else. Nor are workers of a leader
        with another ``host_timeout_s``, which sets the heartbeat interval of their agents.
        """
        if self.limits.lead_patience_s > 0 and not host_timeout_s > 0:
            raise UsageError(
                f"lead-patience-s = {self.limits.lead_patience_s:g} with --host-timeout 0: agents would never "
                "notice the loss of their leader. Give --host-timeout a time above 0, or remove lead-patience-s from "
                "the policy"
            )
        contact, training = _contact(self.folder), _digest([*command, f"{host_timeout_s:g}"])
        is_patient = contact is not None and contact.lead_patience_s > 0 and contact.training == training
        try:
            taken = LeaderLog(self.folder.path).begin_epoch(goes_on=is_patient)
        except OSError as error:
            raise UsageError(f"the run folder {self.folder.path} cannot be written: {error.strerror}") from error
        # Workers that still run have the secret that they were started with.
        secret = contact.secret if contact is not None and is_patient else new_secret()
        past = taken if any(is_lent(each.host) for each in taken.members) else LeaderEntry(0)
        # Even without a contact file: a user who believed the previous leader dead may have removed it.
        begins_s = time.monotonic() + APART_S if taken.epoch > 1 else 0.0
        return msgspec.structs.replace(self, term=LeaderTerm(taken.epoch, secret, training, past, begins_s))

    def contact(self, addresses: list[str], settings: Settings) -> RunContact:
        """Contact of this leader, at these addresses, for the agents of leased hosts."""
        return RunContact(
            addresses,
            self.term.secret,
            settings.host_timeout_s,
            settings.start_timeout_s,
            settings.network_interface,
            epoch=self.term.epoch,
            lead_patience_s=self.limits.lead_patience_s,
            training=self.term.training,
        )

    def require_lead(self) -> None:
        """Raise ``SupersededError`` if another leader has this run now; otherwise raises as ``LeaderLog.check``."""
        LeaderLog(self.folder.path).check(self.term.epoch)

    def read_limits(self) -> LeaseLimits:
        """Read the limits again; raises as ``of`` does."""
        return limits_in(self.folder, self.supply, self.limits.min_np, self.limits.max_np)


def _contact(folder: RunFolder) -> RunContact | None:
    """Contact file of a leader that died; ``None`` if the last leader withdrew it. Raises as ``contact`` does."""
    try:
        return folder.contact()
    except NoLeaderError:
        return None


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()
