"""Pool of nodes that jobs of Slurm lend to a search, as many as its trials can use and the policy of leases allows.

    pool = LeasePool("1x4@1h", max_np=16, budget="200nh")
    result = farandole.search(train, space, trials=64, workers=(1, 4), pool=pool, folder="/shared/runs/lr")

The search asks for the nodes itself, by held job arrays, and gives them back; ``farandole ps FOLDER/pool`` shows them.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import final

import msgspec

from farandole.errors import UsageError
from farandole.launch.batch.defaults import files, with_defaults
from farandole.launch.batch.lease_submission import add_pool_options, array_size, policy_text
from farandole.launch.batch.submit import add_batch_options, batch_options, own_launcher
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.job_arrays import LeaseSupply, limits_in, read_supply, write_supply
from farandole.launch.leases.recorded_leases import RecordedLeases
from farandole.launch.leases.script import LeaseJob, lease_script, parse_lease
from farandole.launch.providers.leases import LeaseProvider
from farandole.launch.providers.provider import own_path
from farandole.launch.sbatch.options import BatchOptions
from farandole.settings import Settings

LEASES_FOLDER = "pool"
"""Name of the folder, inside the search's folder, in which joining nodes find the search."""

OF_THE_LEASE = ("--nodes", "--time", "--job-name", "--output", "--notice")
"""Options of batch scripts that follow from the shape and the folder of a lease."""


@final
class LeasePool(msgspec.Struct, frozen=True):
    """Leases to ask for, at most for ``max_np`` workers; the arguments are the options of ``farandole submit``.

    ``lease``: what each lends, ``"1x4@1h"`` is a node with 4 workers for an hour. ``leases``: number in an array.
    ``budget``: most node-hours, ``"200nh"``. ``policy``: file with all other limits. ``options``: of the batch script;
    ``None``: the defaults of site and user.
    """

    lease: str
    max_np: int
    leases: int | None = None
    budget: str | None = None
    policy: str | None = None
    options: BatchOptions | None = None

    def provider(self, folder: Path, output: Path, settings: Settings) -> LeaseProvider:
        """Provider that takes leases; raises ``UsageError`` for what cannot be, before anything is submitted."""
        supply, policy = self._supply(folder)
        most, least = self.max_np // supply.workers * supply.workers, settings.min_np
        if most < least:
            raise UsageError(f"--max-np {self.max_np}: leases have {most} workers then, and a trial {least} at least")
        if shutil.which("sbatch") is None:
            raise UsageError("sbatch is not found here: search where Slurm's commands are, or leave --lease out")
        return LeaseProvider(folder, output, own_path(), settings, partial(self._begin, supply, policy))

    def text(self, folder: Path) -> str:
        """The script of the leases and the policy, as text for the user."""
        supply, policy = self._supply(folder)
        return f"# ==> a lease <==\n{supply.script}\n# ==> {folder}/policy.toml <==\n{policy}"

    def _supply(self, folder: Path) -> tuple[LeaseSupply, str]:
        shape = parse_lease(self.lease)
        if self.max_np < shape.workers:
            raise UsageError(f"--max-np {self.max_np} is less than one lease lends, {self.lease}: write a larger one")
        options = with_defaults({}, files(os.environ)) if self.options is None else self.options
        job = LeaseJob(folder.parent.name, str(folder), shape, options, *own_launcher())
        count = array_size(self.leases, self.max_np, shape)
        policy = policy_text(count, shape, options.partition, self.budget, self.policy)
        nodes, length_s = shape.nodes, shape.minutes * 60.0
        return LeaseSupply(lease_script(job), workers=shape.workers, nodes=nodes, length_s=length_s), policy

    def _begin(self, supply: LeaseSupply, policy: str, folder: RunFolder) -> RecordedLeases:
        """Write the files of the pool, and go on with the journal of an earlier call."""
        nonce = read_supply(folder).nonce or secrets.token_hex(8)
        supply = msgspec.structs.replace(supply, nonce=nonce)
        write_supply(folder, supply, policy)
        read = partial(limits_in, folder, supply, 0, self.max_np)
        return RecordedLeases(folder, supply, read(), read, _say)


def add_lease_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a pool of leases."""
    group = parser.add_argument_group("leases: jobs of Slurm that lend their nodes while trials can use them")
    group.add_argument("--max-np", type=int, metavar="N", help="most workers on all of them")
    add_pool_options(group)
    group.add_argument("--print", action="store_true", dest="prints", help="print the script of a lease, and end")
    add_batch_options(group, OF_THE_LEASE)
    parser.set_defaults(of_leases={action.dest: action.option_strings[-1] for action in group._group_actions})


def lease_pool(args: argparse.Namespace) -> LeasePool | None:
    """The pool of these options; ``None`` without ``--lease``, where the others have no meaning."""
    if not args.lease:
        for name, flag in args.of_leases.items():
            if getattr(args, name) not in (None, False, []):
                raise UsageError(f"{flag} is of leases: write --lease 1x4@1h, too, or leave it out")
        return None
    if args.max_np is None:
        raise UsageError("--lease: how many workers at most? write --max-np N, too")
    if args.hosts or args.pool not in ("1", "leases"):
        raise UsageError("--lease: the pool are nodes that jobs lend; leave --hosts and --pool out")
    options = batch_options(args, os.environ)
    return LeasePool(args.lease, args.max_np, args.leases, args.budget, args.policy, options)


def _say(text: str) -> None:
    print(f"farandole: {text}", file=sys.stderr, flush=True)
