"""``farandole join``: lend this node to a training that runs elsewhere.

    farandole join /scratch/me/run7            in the script of a lease, or by hand where salloc has given nodes
    farandole join -np 4 /scratch/me/run7      with four workers

This process is the agent of the node. It connects to the leader, starts workers when ordered, and exits when the run is
over, the leader is lost, its workers have left, or on SIGTERM, when the workers leave at their next commit.

Workers of the agent of a lease, which no launcher has started: their leader runs elsewhere, and may be replaced.

    serve(config, address, LeasedWorkers)
    serve(config, address, partial(AdoptableWorkers, lookup))      # they outlive their leader

The agent gets no standard input. On SIGTERM, with which a scheduler takes the host back, it informs the leader, which
makes the workers leave at their next commit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import select
import socket
import sys
from collections.abc import Mapping
from functools import partial
from typing import final

from farandole.cluster.allocation import OWN_NAME
from farandole.control import process
from farandole.control.agent_messages import LeaseOffer, Leaving
from farandole.errors import ControlError, UsageError
from farandole.launch.agents.agent import LaunchedWorkers, dial, serve
from farandole.launch.agents.agent_config import DIAL_SHARE, LaunchedAgentConfig
from farandole.launch.agents.controller_lookup import ControllerLookup, LeaderContact
from farandole.launch.hosts.run_folder import RunContact, RunFolder
from farandole.runtime.relay.agent_link import AgentLink


class LeasedWorkers(LaunchedWorkers):
    """Workers of a lease; they exit with their leader."""

    def __init__(self, config: LaunchedAgentConfig, address: str, signals: int) -> None:
        super().__init__(config, address, signals)
        self._launcher_lives, self._leaving = False, False

    def _on_notice(self) -> None:
        if not self._dismissed:  # else the workers already end, within the grace given by their leader
            self._leaving = True
            self._post(Leaving())

    def _renew(self, link: AgentLink, address: str = "") -> None:
        super()._renew(link, address)
        if self._leaving:
            self._post(Leaving())  # the previous controller may not have recorded it


@final
class AdoptableWorkers(LeasedWorkers):
    """Workers of a lease that wait for the next leader of their run, by ``lookup``, and are adopted by it."""

    def __init__(self, lookup: ControllerLookup, config: LaunchedAgentConfig, address: str, signals: int) -> None:
        super().__init__(config, address, signals)
        self._lookup, self._patience_s, self._is_elsewhere = lookup, lookup.patience_s, True

    @property
    def fds(self) -> dict[int, int]:
        """See ``LaunchedWorkers``; also the descriptor of the lookup."""
        return {**super().fds, self._lookup.fd: select.POLLIN}

    @property
    def _worker_address(self) -> str:
        return self._lookup.address

    def tick(self, now: float) -> None:
        """See ``Workers``; also connect to the next leader, and redirect the workers to it."""
        super().tick(now)
        if self._link is None:
            return
        link = self._link
        if address := self._lookup.found():
            self._renew(link, address)
        elif self._lookup.over:
            self._give_up(ControlError(self._lookup.over))
        self._lookup.follow("" if self._link is None else link.address)


CANNOT_JOIN = 3
"""Exit status if the node cannot be lent: a retry would not help."""

EXAMPLES = """\
examples:
  salloc -N 1 -t 30 srun farandole join ~/runs/cosmo
  farandole join -np 4 ~/runs/cosmo

Lends this node to a training that runs elsewhere: 'farandole run --run-folder'
or 'farandole submit --lease' has made the folder. The workers join the training
at its next commit, and leave it in good order on SIGTERM.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``join`` to the commands."""
    parser = subparsers.add_parser(
        "join",
        help="lend this node to a training that runs elsewhere",
        usage="farandole join [-np N] FOLDER",
        description=EXAMPLES,
    )
    parser.add_argument("-np", "--num-proc", type=int, dest="np", metavar="N", help="workers here (default: its tasks)")
    parser.add_argument("folder", metavar="FOLDER", help="folder of the run")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Lend this node until the training releases it; returns the exit status."""
    try:
        folder = RunFolder.told(args.folder)
        contact = folder.contact()
        terms = terms_of(os.environ, args.np)
        lend(folder, contact, terms)
    except (UsageError, ControlError) as error:
        print(f"farandole join: {error}", file=sys.stderr)
        return CANNOT_JOIN
    return 0


def lend(folder: RunFolder, contact: RunContact, terms: LeaseOffer) -> None:
    """Run the agent of this node until it is done; raises ``ControlError`` if the leader does not answer."""
    process.adopt_orphans()
    config = LaunchedAgentConfig(
        contact.addresses,
        contact.secret,
        terms.host,
        silence_s=contact.host_timeout_s,
        interface=contact.interface,
        dial_s=DIAL_SHARE * contact.start_timeout_s,
        stays=True,
        lent=terms,
    )
    address = dial(config)
    if not contact.lead_patience_s:
        serve(config, address, LeasedWorkers)
        return

    def read() -> LeaderContact:
        found = folder.contact()
        return LeaderContact(found.epoch, found.addresses, found.secret)

    lookup = ControllerLookup(read, contact.secret, contact.epoch, address, contact.lead_patience_s)
    with contextlib.closing(lookup):
        serve(config, address, partial(AdoptableWorkers, lookup))


def terms_of(variables: Mapping[str, str], np: int | None) -> LeaseOffer:
    """Offer of this node, from Slurm's variables if Slurm started this process; pure except for the nonce.

    Raises ``UsageError`` for a number of workers below 1.
    """
    if np is not None and np < 1:
        raise UsageError(f"-np {np} lends nothing; it must be at least 1")
    node = variables.get(OWN_NAME) or socket.gethostname()
    array, index = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
    job = array or variables.get("SLURM_JOB_ID") or f"guest-{secrets.token_hex(4)}"
    tasks = variables.get("SLURM_NTASKS_PER_NODE", "1").partition("(")[0]
    return LeaseOffer(
        job=job,
        index=int(index) if array and index else -1,
        restart=int(variables.get("SLURM_RESTART_COUNT", "0")),
        nonce=secrets.token_hex(8),
        node=node,
        slots=np or int(tasks),
        ends_s=float(variables.get("SLURM_JOB_END_TIME", "0")),
    )
