"""``python -m workbench.attacks numbers|strangers|controllers|network|...``: status 1 if one fails."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench.attacks import conditions, notebook, second_user, strangers
from workbench.attacks.numbers import Ranks, attack
from workbench.cluster import UnavailableError
from workbench.mpi import LAUNCHERS
from workbench.survival.page import row
from workbench.survival.table import CaseResult

BASELINE = (
    (Ranks("solo", "a"), "engine"),
    (Ranks("shm", "aaa"), "engine"),
    (Ranks("shm", "aaa"), "names"),
    (Ranks("tcp", "aaa"), "engine"),
    (Ranks("tcp", "aaa"), "names"),
    (Ranks("tcp", "abc", apart=True), "engine"),
    (Ranks("mpi", "aaa", mpi="mpich"), "engine"),
    (Ranks("mpi", "aaa", mpi="openmpi"), "engine"),
    (Ranks("hybrid+tcp", "aabb"), "engine"),
    (Ranks("hybrid+tcp", "aabb", apart=True), "engine"),
    (Ranks("hybrid+tcp", "abbca"), "engine"),
    (Ranks("hybrid+mpi", "aabb", mpi="mpich"), "engine"),
    (Ranks("hybrid+mpi", "aabb", mpi="openmpi"), "engine"),
)
"""Engines and lanes of ``numbers`` if no engine is named."""

CONDITIONS = {
    "controllers": "an elastic job whose controller fails, and the next one while it takes over",
    "network": "an elastic job on two hosts with 50 ms of lag and one packet in fifty lost",
    "neighbour": "an elastic job on a host where another user takes every name of Farandole's that he sees",
    "clock": "an elastic job while the wall clock jumps by an hour to and fro",
}
"""Names of functions of ``conditions``, and the help of the commands that call them."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m workbench.attacks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_numbers(commands.add_parser("numbers", help="366 all-reduces against float64, on any engine"))
    _add_strangers(commands.add_parser("strangers", help="callers that say nothing, while two ranks connect by tcp"))
    for name, text in CONDITIONS.items():
        commands.add_parser(name, help=text).set_defaults(play=_condition)
    text = "another user of the hosts against a training on a real Slurm, in every way we know"
    commands.add_parser("second_user", help=text).set_defaults(play=_second_user)
    commands.add_parser("notebook", help="cells of a Jupyter kernel").set_defaults(play=_notebook)
    asked = parser.parse_args()
    # SystemExit unwinds the ``with`` blocks that end jobs and clusters; otherwise these would go on.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    play: Callable[[argparse.Namespace], list[str]] = asked.play
    wrong = play(asked)
    print(*(f"WRONG: {each}" for each in wrong), sep="\n", end="\n" if wrong else "")
    sys.exit(len(wrong) > 0)


def _add_numbers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", help="as in --engine of farandole run; hybrid+tcp, hybrid+mpi (default: all)")
    parser.add_argument("-np", type=int, default=2, help="ranks, all on one host")
    parser.add_argument("--hosts", help="a letter for each rank, in place of -np: aabb")
    parser.add_argument("--apart", action="store_true", help="the hosts are namespaces, and not pretended (root)")
    parser.add_argument("--mpi", choices=LAUNCHERS, help="the launcher of the ranks (for mpi: mpich)")
    parser.add_argument("--lane", choices=("engine", "names"), default="engine", help="call the engine, or by name")
    parser.set_defaults(play=_numbers)


def _numbers(asked: argparse.Namespace) -> list[str]:
    if asked.engine is None:
        plays: Sequence[tuple[Ranks, str]] = BASELINE
    else:
        mpi = asked.mpi or ("mpich" if "mpi" in asked.engine else "")
        plays = ((Ranks(asked.engine, asked.hosts or "a" * asked.np, asked.apart, mpi), asked.lane),)
    wrong = []
    for ranks, lane in plays:
        try:
            found = attack(ranks, lane)
        except UnavailableError as reason:  # no failure: engines on one host can be played without root
            print(f"{ranks.text(lane)}: not played: {reason}", flush=True)
            continue
        print(f"{ranks.text(lane)}: {f'{len(found)} wrong' if found else 'right'}", flush=True)
        wrong += [f"{ranks.text(lane)}: {each}" for each in found]
    return wrong


def _add_strangers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, default=20_000, help="strangers that call and stay, in all (20000)")
    parser.set_defaults(play=lambda asked: strangers.attack(asked.number, lambda text: print(text, flush=True)))


def _notebook(_: argparse.Namespace) -> list[str]:
    try:
        return notebook.play()
    except UnavailableError as reason:
        print(f"not played: {reason}")
        return []


def _second_user(_: argparse.Namespace) -> list[str]:
    try:
        return second_user.play(lambda text: print(text, flush=True))
    except UnavailableError as reason:
        print(f"not played: {reason}")
        return []


def _condition(asked: argparse.Namespace) -> list[str]:
    def tell(result: CaseResult) -> None:
        print(row(result), flush=True)

    with tempfile.TemporaryDirectory(prefix="farandole-attacks-") as folder:
        try:
            results = getattr(conditions, asked.command)(Path(folder), tell)
        except UnavailableError as reason:
            print(f"not played: {reason}")
            return []
    return [f"{result.case.fault} in {result.case.phase}: {text}" for result in results for text in result.wrong]
