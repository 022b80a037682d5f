"""``python -m workbench.stress``: play loops under load until the time is up, or one fails."""

# Processes: this one starts the burners and then one loop after the other, and has no threads. The file
# ``site/sitecustomize.py`` on their ``PYTHONPATH`` prepares all processes of a loop: they stall, and handle two signals
# (see ``process``).
#
# A loop that does not end in time is a finding, and its processes are the evidence: they write their stacks and lanes
# into the loop's folder on request, before they are killed.

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, final

from workbench.stress.load import burners
from workbench.stress.process import FOLDER, LANES, STACKS
from workbench.stress.stalls import VARIABLE, Stalls

SITE = Path(__file__).parent / "site"

STALLS = Stalls(0, share=0.02, longest_s=0.02)
LONGEST_OUTPUT = 20_000

ANSWER_S = 3.0
"""Time that hanging processes have to write their stacks and lanes."""

Command: TypeAlias = Callable[[random.Random], Sequence[str]]


class StressLoop(NamedTuple):
    """Command that is run repeatedly; ``deadline_s`` is far beyond its time under load."""

    title: str
    command: Command
    deadline_s: float


def _traffic(draw: random.Random) -> Sequence[str]:
    job = [sys.executable, "-m", "farandole", "run", "-np", str(draw.choice([2, 3, 4]))]
    engine, capacity = draw.choice(["auto", "auto", "tcp"]), draw.choice(["1024", "2", "0"])
    job += ["--engine", engine, "--cache-capacity", capacity]
    return [*job, sys.executable, "-m", "workbench.stress.traffic", *_seed(draw), "4"]


def _seed(draw: random.Random) -> list[str]:
    return [str(draw.randrange(10**6))]


def _tests(*paths: str) -> Command:
    return lambda _: [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths]


def _programs(draw: random.Random) -> Sequence[str]:
    return [
        sys.executable,
        "-m",
        "workbench.differential",
        "--programs",
        "6",
        "--deadline",
        "120",
        "--seed",
        *_seed(draw),
    ]


LOOPS = (
    StressLoop("traffic", _traffic, 180.0),
    StressLoop("peer lane", _tests("tests/jobs/runtime", "-k", "peer_protocol or peer_lane"), 600.0),
    StressLoop("traffic", _traffic, 180.0),
    StressLoop(
        "engines", _tests("tests/jobs/engines/test_contract.py", "-k", "(shm or tcp) and (abort or random)"), 600.0
    ),
    StressLoop("programs", _programs, 900.0),
    StressLoop(
        "failures", _tests("tests/jobs/runtime/test_failures.py", "tests/nightly/stalls/test_signals.py"), 600.0
    ),
    StressLoop("traffic", _traffic, 180.0),
    StressLoop(
        "sessions", _tests("tests/jobs/runtime/test_collectives.py", "tests/unit/runtime/test_process_sets.py"), 600.0
    ),
)


def main() -> None:
    """Run the command line; exit status 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m workbench.stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long (default: 1800)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of loops, traffic and stalls")
    parser.add_argument("--only", default="", help="only loops whose title contains this")
    asked = parser.parse_args()
    loops = [loop for loop in LOOPS if asked.only in loop.title]
    if not loops:
        parser.error(f"--only {asked.only}: the loops are {', '.join(dict.fromkeys(loop.title for loop in LOOPS))}")
    # SystemExit runs ``finally`` in ``Play.run`` and ends the burners; otherwise these processes would go on.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    print(f"seed {asked.seed}, {asked.seconds:g} s", flush=True)
    with burners():
        sys.exit(_play(loops, asked.seconds, random.Random(asked.seed)))


def _play(loops: Sequence[StressLoop], seconds: float, draw: random.Random) -> int:
    end_s = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end_s:
        loop, seed = loops[number % len(loops)], draw.randrange(10**6)
        begin_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="stress-") as folder:
            wrong = Play(loop, seed, Path(folder)).run()
        taken_s = time.monotonic() - begin_s
        print(f"{number:4} {loop.title:14} {taken_s:6.1f} s  {'FAILED' if wrong else 'passed'}", flush=True)
        if wrong:
            print(wrong)
            return 1
        number += 1
    print(f"{number} loops passed")
    return 0


@final
class Play:
    """One run of a loop, with all processes that it starts."""

    def __init__(self, loop: StressLoop, seed: int, folder: Path) -> None:
        self._loop, self._folder = loop, folder
        self._command = loop.command(random.Random(seed))
        paths = [str(SITE), os.environ.get("PYTHONPATH", "")]
        self._told = {VARIABLE: STALLS.text(seed), "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def run(self) -> str:
        """Run the loop; returns the error, with the command that repeats it, or ""."""
        environment = {**os.environ, **self._told, FOLDER: str(self._folder)}
        # A file and no pipe: no process reads while the loop runs, and a full pipe would block the loop.
        with open(self._folder / "output", "w+b") as output:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            where = ""
            try:
                process.wait(self._loop.deadline_s)
            except subprocess.TimeoutExpired:
                where = self._ask(process.pid)
            finally:
                _end(process)
            if process.returncode == 0:
                return ""
            output.seek(0)
            again = " ".join([*(f"{name}={value}" for name, value in self._told.items()), *self._command])
            why = f"hung for {self._loop.deadline_s:g} s" if where else f"exit status {process.returncode}"
            return f"{why}\n{output.read()[-20_000:].decode(errors='replace')}\n{where}\nagain, under load: {again}"

    def _ask(self, root: int) -> str:
        """Request stacks and lanes of all descendants of ``root``."""
        # Only those that have installed the handlers: these signals kill a process that has none.
        asked = [pid for pid in descendants(root) if (self._folder / f"{pid}.stacks").exists()]
        for number in (LANES, STACKS):
            for pid in asked:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            time.sleep(ANSWER_S / 2)  # for the answers to be written, by processes that share busy cores
        return "\n".join(self._answer(pid) for pid in asked)

    def _answer(self, pid: int) -> str:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
        except FileNotFoundError:
            command = "(ended)"
        lanes = self._folder / f"{pid}.lanes"
        told = lanes.read_text() if lanes.exists() else "(in no job, or stuck in native code)\n"
        return f"== process {pid}: {command}\n{told}{(self._folder / f'{pid}.stacks').read_text()}"


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants, parents before children."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # ended meanwhile
            continue
        for child in children:
            yield from descendants(int(child))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants, if it still runs."""
    if process.poll() is None:
        # The whole list before the first kill: children of a dead process are no longer found below it.
        for pid in list(descendants(process.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
