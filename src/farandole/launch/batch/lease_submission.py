"""``farandole submit --lease``: a leader job that trains, and a held array of leases that it may release.

    submission = LeaseSubmission.of(args, lead, environ)
    print(submission.text())                    # both scripts
    submission.submit(environ)

The array is submitted first, because it is held and does nothing; the leader reads its number from the run folder. The
folder is private to the user: the leader writes the key of the job into it.
"""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

import msgspec

from farandole.errors import FarandoleError, UsageError
from farandole.launch.batch.script import BatchJob, batch_script
from farandole.launch.batch.submission import asked, submitted
from farandole.launch.hosts.run_folder import RUNS, RunFolder
from farandole.launch.leases.folder_thread import set_aside
from farandole.launch.leases.job_arrays import LeaseSupply, write_supply
from farandole.launch.leases.policy_file import SITE_POLICY, PolicyFile, bounded, read_policy
from farandole.launch.leases.rules import LeaseRule
from farandole.launch.leases.script import LeaseJob, LeaseShape, lease_script, parse_lease
from farandole.launch.leases.slurm_words import submission, tie
from farandole.launch.sbatch.environment import lease_environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LEAST_S = 60.0
"""Least training time of a lease."""

SPARE = 2
"""Leases in the array per lease that the run can have at a time: ended leases have successors."""


def add_lease_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of runs with leases."""
    group = parser.add_argument_group("leases: further jobs that join the training, and leave it")
    add_pool_options(group)
    group.add_argument("--batch", choices=("fixed", "grow"), help="what becomes of the global batch (default: fixed)")
    group.add_argument("--when", action="append", default=[], metavar="'acc>=0.9'", help="a rule: once this holds ...")
    group.add_argument("--then", action="append", default=[], metavar="'np=2,nice=9'", help="... do this (repeatable)")
    group.add_argument("--run-folder", metavar="DIR", help=f"folder of the run (default: {RUNS}/NAME)")


def add_pool_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of leases that a search has, too."""
    group.add_argument(
        "--lease", metavar="NODESxWORKERS@TIME", help="what each lends: 1x4@1h, or 1x4@1h,20min where less will do"
    )
    group.add_argument("--leases", type=int, metavar="N", help="leases in the array (default: twice the most)")
    group.add_argument("--budget", metavar="200nh", help="upper limit of node-hours for leases")
    group.add_argument("--policy", metavar="FILE", help="all other limits, in TOML: docs/reference/lease-policy.md")


@final
class LeaseSubmission(msgspec.Struct, frozen=True):
    """Jobs of one run: the leader (``lead``) and the leases, with the text of the run's ``policy`` file."""

    folder: Path
    lead: BatchJob
    leases: LeaseJob
    count: int
    policy: str

    @classmethod
    def of(cls, args: argparse.Namespace, lead: BatchJob, limits: tuple[int, int], home: Path) -> LeaseSubmission:
        """The submission described by ``args``; ``limits``: fewest and most workers. Raises ``UsageError``."""
        shape = parse_lease(args.lease)
        fewest, most = limits
        if not lead.elastic or most <= fewest:
            raise UsageError("--lease: leases join and leave: write --min-np N for the leader, and a larger --max-np N")
        name = f"{lead.name}-{secrets.token_hex(2)}"
        folder = Path(args.run_folder).absolute() if args.run_folder else home / RUNS.relative_to("~") / name
        options = msgspec.structs.replace(lead.options, job_name=f"fdl-{folder.name}-lead")
        command = [*lead.run_options, "--run-folder", str(folder)]
        if len(args.when) != len(args.then):
            raise UsageError("each --when has a --then after it: --when 'val_acc>=0.9' --then 'np=2,nice=1000'")
        rules = [LeaseRule.parse(when, then) for when, then in zip(args.when, args.then, strict=True)]
        count = array_size(args.leases, most - fewest, shape)
        return cls(
            folder,
            msgspec.structs.replace(lead, workers=fewest, options=options, run_options=command),
            LeaseJob(folder.name, str(folder), shape, lead.options, lead.path, lead.launcher),
            count,
            policy_text(count, shape, lead.options.partition, args.budget, args.policy, args.batch, rules),
        )

    def text(self) -> str:
        """Both scripts and the policy, as text for the user."""
        parts = {
            "the leader": batch_script(self.lead),
            f"{self.count} leases: {' '.join(submission(self.count, 'NONCE'))}": lease_script(self.leases),
            f"{self.folder}/policy.toml": self.policy,
        }
        return "\n".join(f"# ==> {title} <==\n{text}" for title, text in parts.items() if text)

    def submit(self, variables: Mapping[str, str]) -> Iterator[str]:
        """Submit both, and yield lines for the user; raises ``UsageError`` if Slurm refuses either."""
        folder = RunFolder.create(self.folder)
        folder.refuse_second()
        set_aside(folder)
        nonce, script = secrets.token_hex(8), lease_script(self.leases)
        array = _number(submitted(script, submission(self.count, f"{nonce}x1")[1:], lease_environment(variables)))
        shape = self.leases.shape
        length_s = shape.minutes * 60.0
        supply = LeaseSupply(script, nonce, array, self.count, shape.workers, shape.nodes, length_s)
        try:
            write_supply(folder, supply, self.policy)
            lead = _number(submitted(batch_script(self.lead), ["--parsable"], variables))
        except FarandoleError as error:
            raise UsageError(f"{error}; the held array {array} is left: scancel {array}") from error
        write_supply(folder, msgspec.structs.replace(supply, lead=lead), self.policy)
        if wrong := asked(tie(array, lead), variables):
            yield f"the held leases outlive the leader if a user cancels it ({wrong}); then type: scancel {array}"
        output = self.lead.options.output.replace("%x", self.lead.name).replace("%j", lead)
        yield f"submitted job {lead}, which trains, and {self.count} held leases, array {array}"
        told = self.folder.name if RunFolder.told(self.folder.name).path == self.folder else self.folder
        yield f"see it with: farandole ps {told}; tail -F {output}"
        yield f"order it with: farandole scale {told} N; end it with: farandole stop {told}"


def _number(said: str) -> str:
    return said.partition(";")[0]


def array_size(asked: int | None, workers: int, shape: LeaseShape) -> int:
    """Leases in an array, as ``asked`` for, or enough for so many ``workers`` and for successors."""
    size = SPARE * math.ceil(workers / shape.workers) if asked is None else asked
    if size < 1:
        raise UsageError(f"--leases {size}: at least one, or leave --lease out")
    return size


def policy_text(
    count: int,
    shape: LeaseShape,
    partition: str,
    budget: str | None,
    policy: str | None,
    batch: str | None = None,
    rules: Sequence[LeaseRule] = (),
) -> str:
    """Text of the run's policy file: the file ``policy`` combined with other options; raises if it is invalid."""
    lines = [f"array-leases = {count}", f"lease-lengths-s = [{shape.minutes * 60}]"]
    if budget is not None:
        lines.append(f"budget-node-hours = {_node_hours(budget)}")
    if batch is not None:
        lines.append(f'batch = "{batch}"')
    if policy:  # before the rules: in TOML, keys after a table belong to it
        try:
            lines.append(Path(policy).read_text().rstrip())
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--policy {policy}: {getattr(error, 'strerror', None) or error}") from error
    for rule in rules:
        lines += ["", "[[rules]]", f"when = {_quoted(rule.when)}", f"then = {_quoted(rule.then)}"]
    text = "\n".join(lines) + "\n"
    _check(text, partition)
    return text


def _check(text: str, partition: str) -> None:
    """Raise ``UsageError`` or ``SettingsError`` for a policy that is invalid, or wider than the site's."""
    try:
        asked = PolicyFile("what was asked for", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the policy is not TOML, or has a key that an option has, too: {error}") from error
    limits = bounded(read_policy(SITE_POLICY), asked)
    if limits.longest_s < limits.leave_s + LEAST_S:
        raise UsageError(
            f"--lease of {limits.longest_s / 60:g} min: it would leave {limits.leave_s:g} s before its end (leave-s), "
            "and have less than a minute to train; make it longer"
        )
    wrong = set(filter(None, partition.split(","))) - set(limits.partitions)
    if limits.partitions and (wrong or not partition):
        raise UsageError(
            f"--partition {partition}: leases may go to {', '.join(limits.partitions)} here, and nowhere else"
        )


def _node_hours(text: str) -> float:
    number = text.removesuffix("nh")
    try:
        hours = float(number)
    except ValueError:
        hours = 0.0
    if hours <= 0 or number == text:
        raise UsageError(f"--budget {text!r} is no number of node-hours: write 200nh")
    return hours


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
