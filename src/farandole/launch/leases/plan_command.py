"""``farandole plan``: simulate the policy of leases on a recorded trace, dry-run it, or replay its journal.

Dry run of the policy of a running job: what it would decide now, after a look at the queue.

for decision in dry_run(RunFolder("~/runs/cosmo"), SlurmScheduler(os.environ), time.time()): print(decision.reason)

It starts from the last line of the run's journal, so it decides what the run itself would decide after the same look.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from farandole.errors import UsageError
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.actions import LOOKS, LeaseDecision
from farandole.launch.leases.decide import decide
from farandole.launch.leases.ending import arrays_of
from farandole.launch.leases.folder_thread import JOURNAL, last
from farandole.launch.leases.job_arrays import limits_in, read_supply
from farandole.launch.leases.journal import replay
from farandole.launch.leases.lease_table import LeaseTable
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.policy_file import SITE_POLICY, PolicyFile, bounded, read_policy
from farandole.launch.leases.rules import LeaseRule
from farandole.launch.leases.scheduler import CallRefused, CallUnanswered, Looked, Scheduler, answered
from farandole.launch.leases.simulation.report import MODES, PlanReport
from farandole.launch.leases.simulation.simulate import simulate, simulate_static
from farandole.launch.leases.simulation.trace import Trace, read_trace
from farandole.launch.leases.simulation.training import TrainingModel
from farandole.launch.leases.slurm import SlurmScheduler

PATIENCE_S = 60.0
"""Timeout for the looks at the queue."""


def dry_run(folder: RunFolder, scheduler: Scheduler, now_s: float) -> list[LeaseDecision]:
    """Look at the queue and decide; raises ``UsageError`` if there is no run, or the scheduler does not answer."""
    folder.check()
    try:
        found = last(folder)
    except OSError as error:
        raise UsageError(f"{folder.path / JOURNAL} cannot be read: {error.strerror}; try again") from error
    if found is None:
        raise UsageError(f"there is no journal of leases in {folder.path}: nothing has been decided there yet")
    supply = read_supply(folder)
    limits = limits_in(folder, supply, found.limits.min_np, found.limits.max_np)
    book = LeaseTable()
    book.restore(found.seen.leases, found.seen.node_hours, found.seen.now_s)
    arrays, _ = arrays_of(folder, supply)
    for array in arrays:
        scheduler.look(array)
    for answer in answered(scheduler, len(arrays), PATIENCE_S):
        if isinstance(answer, CallRefused | CallUnanswered):
            raise UsageError(f"a look at {answer.subject} failed: {answer.words}")
        if isinstance(answer, Looked):
            book.look(answer.array, answer.jobs, now_s)
    orders = (*found.asked, *book.orders())
    seen = msgspec.structs.replace(
        found.seen, now_s=now_s, leases=book.leases, orders=orders, refusals=(), looked_s=0.0
    )
    _, decisions = decide(limits, found.after, seen)
    return [decision for decision in decisions if not isinstance(decision.action, LOOKS)]


EXAMPLES = """\
examples:
  sacct -a -P -X -S now-7days -o JobID,Submit,Start,End,NNodes,State,Timelimit \\
      > sacct.txt
  farandole plan --trace sacct.txt
  farandole plan --trace sacct.txt --policy p.toml --training t.toml
  farandole plan --trace log.swf --mode backfill --nodes 128 --save plan.png
  farandole plan --dry-run ~/runs/cosmo
  farandole plan --replay ~/runs/cosmo/leases.jsonl

With --trace: trains in virtual time on a cluster as it was, once on leases by
the policy that decides in earnest, and once on each of several fixed sizes.
Prints the time, the node-hours and the waits of each. The trace is what sacct
prints with -a -P, or a file in the Standard Workload Format. Nothing is
submitted. With --dry-run: queries the queue, and prints what the run would do
now. With --replay: decides every line of a journal again, and shows those
whose decision differs now; exit status 1 if there are any.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``plan`` to the commands."""
    parser = subparsers.add_parser(
        "plan",
        help="what a training on leases would do, without doing it",
        usage="farandole plan --trace FILE [options] | --dry-run FOLDER | --replay JOURNAL",
        description=EXAMPLES,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--trace", metavar="FILE", help="jobs of a cluster: output of 'sacct -a -P', or an SWF file")
    what.add_argument("--dry-run", metavar="FOLDER", help="print what a running training would decide now")
    what.add_argument("--replay", metavar="JOURNAL", help="repeat the decisions in a journal of leases")
    options = parser.add_argument_group("with --trace")
    options.add_argument("--policy", metavar="FILE", help="limits of the policy, in TOML (default: built in)")
    options.add_argument("--training", metavar="FILE", help="the training, in TOML (default: ResNet-50 on ImageNet)")
    options.add_argument("--nodes", type=int, default=0, metavar="N", help="nodes of the cluster (default: those used)")
    options.add_argument(
        "--begin", type=float, default=0.0, metavar="HOURS", help="begin so long after the first job (default: 0)"
    )
    options.add_argument(
        "--mode", choices=MODES, default="holes", help="; ".join(f"{k}: {v}" for k, v in MODES.items())
    )
    options.add_argument("--own", type=int, default=0, metavar="N", help="workers of the leader itself (default: 0)")
    options.add_argument("--static", metavar="N,N", help="sizes to compare with (default: powers of two)")
    options.add_argument(
        "--when",
        action="append",
        default=[],
        metavar="RULE",
        help="rule of a run, on the 'share' of the training that is done, or its 'samples': --when 'share>=0.9'",
    )
    options.add_argument("--then", action="append", default=[], metavar="EFFECT", help="its effect: --then 'np=2'")
    options.add_argument("--journal", metavar="FILE", help="write each decision there, for --replay")
    options.add_argument("--explain", action="store_true", help="print decisions with their reasons")
    options.add_argument("--save", metavar="PICTURE", help="draw the run (needs matplotlib: farandole[plot])")
    options.add_argument("--json", action="store_true", help="print the numbers for programs")
    options.add_argument("--seed", type=int, default=1, metavar="N", help="seed of what is measured (default: 1)")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Simulate or replay; returns the exit status."""
    if args.dry_run:
        return _dry_run(RunFolder.told(args.dry_run))
    return _replay(Path(args.replay)) if args.replay else _simulate(args)


def limits_for(policy: str | None, rules: list[LeaseRule], site: Path = SITE_POLICY) -> LeaseLimits:
    """Limits of a user's policy file and rules within those of the site."""
    if policy is not None and not Path(policy).is_file():
        raise UsageError(f"the policy file {policy} is not there; write lines like: max-np = 16")
    user = read_policy(Path(policy)) if policy else PolicyFile("the command line")
    values: Mapping[str, object] = user.values
    if rules:
        values = {**values, "rules": [*user.values.get("rules", []), *map(msgspec.structs.asdict, rules)]}
    return bounded(read_policy(site), PolicyFile(user.path, values))


def rules_of(whens: list[str], thens: list[str]) -> list[LeaseRule]:
    """Rules from the options ``--when`` and ``--then``, paired in order."""
    if len(whens) != len(thens):
        raise UsageError(f"--when was given {len(whens)} times and --then {len(thens)} times: each needs the other")
    return [LeaseRule.parse(when, then) for when, then in zip(whens, thens, strict=True)]


def _dry_run(folder: RunFolder) -> int:
    scheduler = SlurmScheduler(os.environ)
    try:
        decisions = dry_run(folder, scheduler, time.time())
    finally:
        scheduler.close()
    for decision in decisions:
        subject = getattr(decision.action, "job", "")
        print(f"{type(decision.action).__name__} {subject}".strip() + f": {decision.reason}")
    if not decisions:
        print("it would do nothing now")
    return 0


def _replay(path: Path) -> int:
    try:
        lines = path.read_text().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"the journal {path} cannot be read: {error.strerror}") from error
    differences = 0
    for difference in replay(lines):
        differences += 1
        print(difference)
    whole = sum(line.endswith("\n") for line in lines)
    print(f"{whole} calls decided again, {differences or 'none'} with another outcome")
    return 1 if differences else 0


def _simulate(args: argparse.Namespace) -> int:
    if args.save:
        _require_matplotlib()
    limits = limits_for(args.policy, rules_of(args.when, args.then))
    model = TrainingModel.read(Path(args.training)) if args.training else TrainingModel()
    trace = read_trace(Path(args.trace), args.nodes, args.begin * 3600.0)
    report = _report(args, limits, model, trace)
    if args.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report.as_table())).decode() + "\n")
    else:
        _print(report, explains=args.explain)
    if args.save:
        from farandole.launch.leases.simulation.picture import draw_plan  # known to be installed by now

        draw_plan(report, args.save)
    return 0


def _report(args: argparse.Namespace, limits: LeaseLimits, model: TrainingModel, trace: Trace) -> PlanReport:
    if args.journal:
        with open(args.journal, "w") as file:
            run = simulate(limits, trace, model, mode=args.mode, own=args.own, seed=args.seed, write=file.write)
    else:
        run = simulate(limits, trace, model, mode=args.mode, own=args.own, seed=args.seed)
    most = limits.max_np or args.own + limits.most_leases * limits.lease_workers
    static = [
        simulate_static(limits, trace, model, workers=n, mode=args.mode) for n in sizes(args.static, limits, most)
    ]
    return PlanReport(trace, model, limits, args.mode, run, static)


def sizes(text: str | None, limits: LeaseLimits, most: int) -> list[int]:
    """Static sizes to compare with: those in ``text``, or powers of two in whole leases up to ``most``."""
    if text is None:
        powers = (limits.lease_workers * 2**i for i in range(20))
        return [size for size in powers if size <= most]
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) for part in parts):
        raise UsageError(f"--static {text!r}: write numbers of workers with commas, as in --static 2,4,8")
    return [int(part) for part in parts]


def _print(report: PlanReport, *, explains: bool) -> None:
    from rich.console import Console

    wide = os.get_terminal_size().columns if sys.stdout.isatty() else 80
    console = Console(width=min(wide, 80), highlight=False, markup=False, emoji=False)
    if explains:
        for at_s, decision in report.run.decided:
            if isinstance(decision.action, LOOKS):
                continue  # too many to read, all with the same reason
            hours, minutes = divmod(int(at_s) // 60, 60)
            action = type(decision.action).__name__
            subject = getattr(decision.action, "job", "")
            console.print(f"{hours:4d}:{minutes:02d} {f'{action} {subject}'.strip()}: {decision.reason}")
    console.print(report)


def _require_matplotlib() -> None:
    """Report that matplotlib is missing before the simulation, not after it."""
    from farandole.largebatch.picture import new_figure

    try:
        new_figure()
    except ModuleNotFoundError as error:
        raise UsageError(f"--save: {error}") from error
