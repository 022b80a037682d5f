"""``farandole ps``, ``scale``, ``hold``, ``release``, ``stop``: commands of users for a run with leases.

    farandole ps                            all runs
    farandole ps ~/runs/cosmo               who trains where, what waits, and why
    farandole scale ~/runs/cosmo 8          eight workers, if leases can be had

They connect to the controller of the run, by the contact file in its folder, and print its reply.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

from farandole.control.channel import Dealer
from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys
from farandole.control.message import Message
from farandole.control.run_messages import (
    ANSWER_S,
    PERSON,
    HostView,
    LeaseView,
    RunOrder,
    RunQuestion,
    RunReply,
    RunView,
)
from farandole.control.search_messages import PoolView
from farandole.errors import ControlError, FarandoleError, UsageError
from farandole.launch.hosts.run_folder import CONTACT, LEAD_ANSWERS_S, RUNS, NoLeaderError, RunContact, RunFolder
from farandole.launch.leases.ending import end_leases
from farandole.launch.leases.job_arrays import read_supply
from farandole.launch.leases.policy_context import count
from farandole.launch.leases.slurm_words import NO_JOB, ClientReply, own_states, state_of, states, told_of
from farandole.launch.sbatch.environment import client_environment

ANSWERS_S = 3 * ANSWER_S
"""Timeout for the controller's reply: longer than an order can wait there, so that no order is obeyed after it."""

VERBS = {
    "ps": (
        "show runs that take leases",
        """\
  farandole ps
  farandole ps train-8f3a
  farandole ps ~/runs/cosmo
  farandole ps ~/runs/search/pool

Shows who trains where, which leases wait or run, until when, and the last
decisions with their reasons; of a search with --pool leases, which nodes it has
and their trials. 'farandole stop' ends either. Without a folder: how the runs
in ~/.farandole/runs are doing; such a run may be given by its name.
""",
    ),
    "scale": (
        "set the number of workers of such a run",
        """\
  farandole scale ~/runs/cosmo 8

Sets the number of workers that the run should have. It grows as leases start,
and shrinks at the next commit; the bounds of its policy hold.
""",
    ),
    "hold": (
        "let such a run grow no more",
        """\
  farandole hold ~/runs/cosmo

Releases no more leases until 'farandole release'. What runs goes on.
""",
    ),
    "release": (
        "let it grow again",
        """\
  farandole release ~/runs/cosmo

Ends a 'farandole hold' or 'farandole scale': the policy decides again.
""",
    ),
    "stop": (
        "end it, and its leases",
        """\
  farandole stop ~/runs/cosmo

Ends the training at its next commit, and with it all leases. Where the leader
does not answer, as it waits in the queue or has died, its job and the leases
are cancelled.
""",
    ),
}
"""Help of each command: one line, and examples with a description."""

_Answer = TypeVar("_Answer", bound=Message)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add all five to the commands."""
    for verb, (told, example) in VERBS.items():
        is_ps = verb == "ps"
        usage = f"farandole {verb} {'[FOLDER]' if is_ps else 'FOLDER'}{' N' if verb == 'scale' else ''}"
        parser = subparsers.add_parser(verb, help=told, usage=usage, description=f"example:\n{example}")
        where = "folder of the run, or its name"
        parser.add_argument("folder", metavar="FOLDER", nargs="?" if is_ps else None, help=where)
        if verb == "scale":
            parser.add_argument("number", type=int, metavar="N", help="number of workers")
        parser.set_defaults(main=_show if is_ps else _order)


def request_reply(folder: RunFolder, message: Message, *kinds: type[_Answer], patience_s: float = ANSWERS_S) -> _Answer:
    """Send a question or an order to a run and return its reply; raises ``FarandoleError`` if none arrives in time.

    A leader that does not accept a connection at once is tried again for ``patience_s``.
    """
    with _dealer(folder, patience_s) as dealer:
        dealer.send(message)
        until_s = time.monotonic() + ANSWERS_S
        while (left_s := until_s - time.monotonic()) > 0:
            answer = dealer.recv(left_s)
            if isinstance(answer, kinds):
                return answer
    raise FarandoleError(f"the run {folder.name} has not answered within {ANSWERS_S:.0f} s")


@contextmanager
def _dealer(folder: RunFolder, patience_s: float) -> Iterator[Dealer]:
    try:
        contact = folder.contact()
    except NoLeaderError as error:
        if words := _lead_told(folder):
            raise NoLeaderError(f"the run {folder.name} has no leader now: {words}") from error
        raise
    keys = JobKeys.from_secret(contact.secret)
    try:
        address = _answering(folder, contact, keys, patience_s)
        with Dealer(address, PERSON + secrets.token_hex(8).encode(), keys, ANSWERS_S) as dealer:
            yield dealer
    except ControlError as error:
        raise FarandoleError(f"the run {folder.name} cannot be reached from here: {error}") from error


def _answering(folder: RunFolder, contact: RunContact, keys: JobKeys, patience_s: float) -> str:
    """Address at which the leader answers; raises ``ControlError``, at once if its scheduler job does not run."""
    try:
        return first_answering(contact.addresses, keys, LEAD_ANSWERS_S)
    except ControlError as error:
        if words := _lead_told(folder):
            raise ControlError(words) from error
        return first_answering(contact.addresses, keys, patience_s)


def _lead_told(folder: RunFolder) -> str:
    """Text on the leader's scheduler job if it does not run; "" if it runs, or if its state is unknown."""
    lead = read_supply(folder).lead
    return told_of(lead, _squeue(state_of(lead))) if lead else ""


def _squeue(command: Sequence[str]) -> ClientReply:
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "timeout": ANSWERS_S}
    try:
        done = subprocess.run(command, env=client_environment(os.environ), check=False, **pipes)
    except (OSError, subprocess.TimeoutExpired) as error:
        return ClientReply(None, "", str(error))
    return ClientReply(done.returncode, done.stdout, done.stderr)


def _order(args: argparse.Namespace) -> int:
    folder = RunFolder.told(args.folder)
    try:
        reply = request_reply(folder, RunOrder(args.name, getattr(args, "number", 0)), RunReply)
    except FarandoleError as error:
        is_there = isinstance(error, UsageError) and os.path.exists(folder.path / CONTACT)
        if args.name != "stop" or is_there:
            raise
        return _sweep(folder, error)
    if not reply.accepted:
        raise UsageError(reply.text)
    print(reply.text)
    return 0


def _sweep(folder: RunFolder, error: FarandoleError) -> int:
    """Cancel the scheduler jobs of a run whose leader does not answer; raises ``error`` if the run has none."""
    folder.check()
    supply = read_supply(folder)
    if not supply.script:
        raise error
    jobs, left = end_leases(folder, supply, [supply.lead] if supply.lead else [])
    print(f"{error}; so its jobs are cancelled: {', '.join(jobs)}")
    for text in left:
        print(text)
    return 1 if left else 0


def _show(args: argparse.Namespace) -> int:
    console = Console(markup=False)  # texts of a scheduler may contain brackets
    if args.folder is None:
        return _show_all(RUNS.expanduser(), console)
    folder = RunFolder.told(args.folder)
    answer = request_reply(folder, RunQuestion(), RunView, PoolView)
    if isinstance(answer, RunView):
        show(folder.name, answer, console)
    elif isinstance(answer, PoolView):
        show_pool(folder, answer, console)
    return 0


def _show_all(home: Path, console: Console) -> int:
    """Print the state of the runs in ``home``, the latest first."""
    paths = [path for path in home.iterdir() if path.is_dir()] if os.path.isdir(home) else []
    reply = _squeue(own_states())
    jobs = states(reply.out) if reply.code == 0 else None
    table, over = Table("run", "how it stands", box=box.SIMPLE_HEAD), []
    for folder in map(RunFolder, sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)):
        words = _state(folder, jobs)
        if words:
            table.add_row(folder.name, words)
        else:
            over.append(folder.name)
    if table.row_count:
        console.print(table)
    else:
        told = f"no run goes on in {home}; of one elsewhere: farandole ps FOLDER"
        console.print(told, highlight=False, soft_wrap=True)
    if over:
        console.print(f"over: {', '.join(over)}", highlight=False, soft_wrap=True)
    return 0


def _state(folder: RunFolder, jobs: Mapping[str, ClientReply] | None) -> str:
    """State of a run as a text; "" if it is over. ``jobs``: jobs known to the scheduler, if it has answered."""
    lead = ""
    try:
        lead = read_supply(folder).lead
        if lead and jobs is not None and (words := told_of(lead, jobs.get(lead, NO_JOB))):
            has_ended = lead not in jobs or jobs[lead].is_of_ended
            return "" if has_ended and not os.path.exists(folder.path / CONTACT) else words
        view = request_reply(folder, RunQuestion(), RunView, PoolView, patience_s=LEAD_ANSWERS_S)
    except NoLeaderError:
        return f"its job {lead} starts" if lead and jobs is not None else ""
    except FarandoleError as error:
        return str(error)
    return _size_told(view) if isinstance(view, RunView) else _pool_told(view) if isinstance(view, PoolView) else ""


def show_pool(folder: RunFolder, view: PoolView, console: Console) -> None:
    """Print the pool of a search in 80 columns."""
    console.print(f"search {folder.path.parent.name}: {_pool_told(view)}", highlight=False)
    hosts = Table("host", "workers", "trials", box=box.SIMPLE_HEAD)
    for host in view.hosts:
        trials = ", ".join(map(str, host.trials))
        hosts.add_row(host.host.partition("+")[0], "leaves" if host.leaves else str(host.workers), trials)
    if view.hosts:
        console.print(hosts)
    elif not view.leases:
        console.print(f"no node is lent: farandole join {folder.path}", highlight=False, soft_wrap=True)
    _show_leases(view.leases, time.time(), console)
    for text in view.said:
        console.print(text, highlight=False)


def show(name: str, view: RunView, console: Console) -> None:
    """Print a run in 80 columns, on a terminal and in a log file."""
    console.print(f"run {name}: {_size_told(view)}", highlight=False)
    hosts = Table("host", "ranks", "lease", "until", box=box.SIMPLE_HEAD)
    for host in view.hosts:
        hosts.add_row(host.host.partition("+")[0], _ranks(host), host.lease, _moment(host.ends_s, view.now_s))
    console.print(hosts)
    _show_leases(view.leases, view.now_s, console)
    for metric, value in view.metrics.items():
        console.print(f"{metric} {value:.6g}", highlight=False)
    for text in view.said:
        console.print(text, highlight=False)


def _show_leases(found: Sequence[LeaseView], now_s: float, console: Console) -> None:
    """Print the leases that do not train yet, or no more."""
    waiting = [lease for lease in found if lease.phase not in ("held", "member", "gone")]
    if waiting:
        leases = Table("lease", "phase", "for", "workers", box=box.SIMPLE_HEAD)
        for lease in waiting:
            leases.add_row(lease.job, lease.phase, _span(now_s - lease.since_s), str(lease.workers))
        console.print(leases)
    held = sum(lease.phase == "held" for lease in found)
    if held:
        console.print(f"{count(held, 'lease')} held back", highlight=False)


def _size_told(view: RunView) -> str:
    size = sum(len(host.ranks) for host in view.hosts)
    bounds = f"{view.min_np} to {view.max_np}" if view.max_np else f"at least {view.min_np}"
    return f"{count(size)} ({bounds}), generation {view.generation}, for {_span(view.now_s - view.began_s)}"


def _pool_told(view: PoolView) -> str:
    return f"{count(sum(host.workers for host in view.hosts))}; {view.trials}"


def _ranks(host: HostView) -> str:
    if not host.ranks:
        return f"none yet of {host.slots}"
    first, last = host.ranks[0], host.ranks[-1]
    return f"{first} to {last}" if last - first == len(host.ranks) - 1 > 0 else ", ".join(map(str, host.ranks))


def _span(seconds: float) -> str:
    """Return a time span as a text.

    >>> _span(59.0), _span(3700.0), _span(200000.0)
    ('59 s', '1 h 01 min', '2 d 07 h')
    """
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days} d {hours % 24:02} h"
    return f"{hours} h {minutes % 60:02} min" if hours else f"{minutes} min"


def _moment(at_s: float, now_s: float) -> str:
    """Time of day, or date, of ``at_s``; "" if it is 0."""
    if not at_s:
        return ""
    form = "%H:%M" if at_s - now_s < 86400 else "%d %b %H:%M"
    return time.strftime(form, time.localtime(at_s))
