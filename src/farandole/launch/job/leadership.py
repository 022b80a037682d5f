"""Terms of a run that takes leases, and of the lead that has it.

terms = RunTerms.of(folder, settings)
terms = terms.lead(["python", "train.py"], 3.0)      # from here on no earlier lead forms a generation
terms.term.epoch, terms.term.past       # its number, and the generation that it may go on with
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
from farandole.launch.hosts.leader_log import LeadEntry, LeaderLog
from farandole.launch.hosts.leased_hosts import is_lent
from farandole.launch.hosts.run_folder import NoLeadError, RunContact, RunFolder
from farandole.launch.job.leader_thread import LOOK_S
from farandole.launch.leases.job_arrays import LeaseSupply, limits_in, read_supply
from farandole.launch.leases.limits import LeaseLimits
from farandole.settings import Settings

APART_S = 3 * LOOK_S
"""Pause before a lead that adopts nobody begins: the one before, if it lives, has looked by then, and ended."""

IDS_APART = 1000
"""Workers of a lead are numbered from the next multiple of this: nobody knows how many the one before has started."""


@final
class LeadTerm(msgspec.Struct, frozen=True):
    """Term of one lead: its ``epoch``, the job's ``secret``, and the generation that was ``past`` to it, if any.

    ``training`` stands for what must not change if another lead is to go on with its workers. It begins nothing of its
    own before ``begins_s``, by ``time.monotonic``.
    """

    epoch: int
    secret: str
    training: str = ""
    past: LeadEntry = LeadEntry(0)
    begins_s: float = 0.0

    def adopted(self) -> LeadReplaced:
        """The event that tells a membership of the past generation."""
        seats = tuple(MemberSlot(each.worker_id, each.host, each.slot) for each in self.past.members)
        first = (self.past.next_worker_id // IDS_APART + 1) * IDS_APART
        return LeadReplaced(self.past.generation, seats, first)


@final
class Leadership(msgspec.Struct, frozen=True):
    """Terms of a run: its ``folder``, the ``supply`` and ``limits`` of its leases as they were at its start.

    ``term`` is that of this lead, once it leads.
    """

    folder: RunFolder
    supply: LeaseSupply
    limits: LeaseLimits
    term: LeadTerm = LeadTerm(0, "")

    @classmethod
    def of(cls, folder: RunFolder, settings: Settings) -> Leadership:
        """Read the terms in the folder of a run; raises ``UsageError`` for files that cannot be meant."""
        supply = read_supply(folder)
        return cls(folder, supply, limits_in(folder, supply, settings.min_np, settings.max_np))

    def lead(self, command: Sequence[str], host_timeout_s: float) -> Leadership:
        """Take the lead, and what another one has left; raises ``UsageError`` where that cannot be.

        The workers of one that had another ``command`` train something else, and are not gone on with. Nor are those of
        one with another ``host_timeout_s``, by which their agents say that they are there.
        """
        if self.limits.lead_patience_s > 0 and not host_timeout_s > 0:
            raise UsageError(
                f"lead-patience-s = {self.limits.lead_patience_s:g} with --host-timeout 0: agents would never notice "
                "that their lead is gone. Give --host-timeout a time above 0, or take lead-patience-s out of the policy"
            )
        contact, training = _contact(self.folder), _digest([*command, f"{host_timeout_s:g}"])
        is_patient = contact is not None and contact.lead_patience_s > 0 and contact.training == training
        try:
            taken = LeaderLog(self.folder.path).take(goes_on=is_patient)
        except OSError as error:
            raise UsageError(f"the run folder {self.folder.path} cannot be written: {error.strerror}") from error
        # Workers that run on know the key that they were started with.
        secret = contact.secret if contact is not None and is_patient else new_secret()
        past = taken if any(is_lent(each.host) for each in taken.members) else LeadEntry(0)
        # Whether or not that one has left a contact: somebody may have removed it, as its owner was thought to be gone.
        begins_s = time.monotonic() + APART_S if taken.epoch > 1 else 0.0
        return msgspec.structs.replace(self, term=LeadTerm(taken.epoch, secret, training, past, begins_s))

    def contact(self, addresses: list[str], settings: Settings) -> RunContact:
        """Contact of this lead for those who lend it hosts, at these addresses."""
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
        """Raise ``SupersededError`` if another lead has this run now; where nobody knows, as ``LeaderLog`` does."""
        LeaderLog(self.folder.path).check(self.term.epoch)

    def read_limits(self) -> LeaseLimits:
        """Read the limits again; raises as ``of`` does."""
        return limits_in(self.folder, self.supply, self.limits.min_np, self.limits.max_np)


def _contact(folder: RunFolder) -> RunContact | None:
    """Contact that a lead has left which is gone; ``None`` if it has ended well. Raises as ``contact`` does."""
    try:
        return folder.contact()
    except NoLeadError:
        return None


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()
