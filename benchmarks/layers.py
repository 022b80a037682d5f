"""What layers for rare cases bring: jobs with each of them and without, in turns, on this machine.

python -m benchmarks.layers [small tree survey controller lead] [--rounds N]

``small``: a small all-reduce and a training step without the fast path, and without the peer lane. ``tree``: an
all-reduce through relays (hosts made of namespaces). ``survey``: the report of crossed calls. ``controller``, ``lead``:
the pause of the workers when it fails. The layers are patched out of the ranks (``layers_rank``); what would end the
job is ended in fact, and started again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.fleet import Fleet
from benchmarks.frameworks.start import ONE_THREAD
from benchmarks.job import farandole
from benchmarks.measure import Sample
from farandole.control import process
from farandole.launch.hosts.run_folder import CONTACT
from workbench.cluster import HEAD, Cluster
from workbench.controllers import fail_controller

RANK = [sys.executable, "-m", "benchmarks.layers_numpy_rank"]
WITHOUT = ("nothing", "fast path", "peer lane")
WORKS = ("named", "graph", "torch-tiny", "torch-cnn", "torch-large", "jax-tiny", "jax-large")
SECONDS = 0.4
"""Length of one measurement."""
MANY = "node1:2,node2:2,node3:2,node4:2"
TREES = {"flat": ("32", "nothing"), "flat, without peer lane": ("32", "peer lane"), "relays, radix 2": ("2", "nothing")}
STEPS, SETTLED_S = 100, 1.0
"""Steps of both ranks before a fault; a step so long after it shows that the training goes on."""
LIMIT_S = 120.0


def small(rounds: int) -> None:
    """Steps and calls of two ranks; three jobs stand ready at once, and rounds go from one to the next."""
    command = farandole("run", "-np", "2", sys.executable, "-m", "benchmarks.layers_rank")
    with ExitStack() as held:
        fleets = [
            held.enter_context(Fleet(layer, 2, commands=[(command, {**ONE_THREAD, "WITHOUT": layer})]))
            for layer in WITHOUT
        ]
        for work in WORKS:
            times = {fleet.contender: fleet.call("prepare", work, SECONDS)[0] for fleet in fleets}
            taken: dict[str, list[float]] = {layer: [] for layer in WITHOUT}
            for number in range(rounds):
                for fleet in fleets[number % 3 :] + fleets[: number % 3]:
                    taken[fleet.contender].append(max(fleet.call("time", times[fleet.contender])))
            show(work, taken, "us" if work == "named" else "ms")


def tree(rounds: int) -> None:
    """Whole jobs of 8 ranks on four hosts, in turns: median time of a named all-reduce of four bytes."""
    taken: dict[str, list[float]] = {name: [] for name in TREES}
    with Cluster(4) as cluster:
        for _, (name, (radix, layer)) in itertools.product(range(rounds), TREES.items()):
            environment = ["env", "OMP_NUM_THREADS=1", f"WITHOUT={layer}"]
            command = farandole("run", "-H", MANY, "--tree-radix", radix, *environment, *RANK, "latency")
            said = cluster.run(HEAD, command, timeout_s=LIMIT_S).stdout
            taken[name].append(float(said.partition("took ")[2].split()[0]))
    show("tree", taken, "us")


def survey(_rounds: int) -> None:
    """Seconds from crossed calls to the first word about them."""
    for layer, word in (("nothing", "MismatchError"), ("survey", "stall")):
        command = farandole("run", "-np", "2", *RANK, "crossed")
        with running(command, {"WITHOUT": layer}, subprocess.PIPE) as job:
            assert job.stdout is not None
            crossed_s = 0.0
            for line in job.stdout:
                if "crossed " in line:
                    crossed_s = float(line.split()[-1])
                elif word in line:
                    print(f"survey, without {layer}: {time.monotonic() - crossed_s:.2f} s: {line.strip()[:100]}")
                    break


def controller(rounds: int) -> None:
    """Longest pause between two steps of an elastic job whose controller fails, and of one that is started again."""
    taken: dict[str, list[float]] = {"takes over": [], "starts again": []}
    command = [sys.executable, "-m", "workbench.controllers", "run", "-np", "2", "--min-np", "1", *RANK, "train"]
    for _ in range(rounds):
        with folder() as path, running([*command, str(path)]) as job:
            until(lambda path=path: len(steps(path)) > STEPS)  # type: ignore[misc]
            at_s = time.monotonic()
            fail_controller(job.pid)
            taken["takes over"].append(pause_s(path, at_s))
            at_s = time.monotonic()
            job.kill()
            with running([*command, str(path)]):
                taken["starts again"].append(pause_s(path, at_s))
    show("controller", taken, "s")


def lead(rounds: int) -> None:
    """Pause of the workers of two leases when the lead is killed and started again.

    Without ``lead-patience-s`` the leases end, too, and are started again.
    """
    taken: dict[str, list[float]] = {"adopts": [], "starts again": []}
    for _, name in itertools.product(range(rounds), taken):
        with folder() as path, ExitStack() as held:
            run = path / "run"
            run.mkdir(mode=0o700)
            (run / "policy.toml").write_text("lead-patience-s = 60\n" if name == "adopts" else "")
            command = farandole("run", "--run-folder", str(run), "--min-np", "1", "--max-np", "4")
            first = held.enter_context(running([*command, *RANK, "train", str(path)]))
            until((run / CONTACT).exists)
            leases = [held.enter_context(leased(run, index)) for index in range(2)]
            until(lambda path=path: len(steps(path, 3)) > STEPS)  # type: ignore[misc]
            at_s = time.monotonic()
            for pid in (first.pid, *process.descendants(first.pid)):
                os.kill(pid, signal.SIGKILL)
            if name == "starts again":
                for each in leases:
                    each.wait(LIMIT_S)
                (run / CONTACT).unlink()
            held.enter_context(running([*command, *RANK, "train", str(path)]))
            if name == "starts again":
                until((run / CONTACT).exists)
                for index in range(2):
                    held.enter_context(leased(run, index, SLURM_RESTART_COUNT="1"))
            taken[name].append(pause_s(path, at_s, 3))
    show("lead", taken, "s")


@contextlib.contextmanager
def running(
    command: list[str], env: dict[str, str] | None = None, stdout: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    """Process of this command, which is killed at the end with what it has started."""
    told = {**os.environ, **(env or {})}
    job = subprocess.Popen(
        command, env=told, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield job
    finally:
        for pid in (job.pid, *process.descendants(job.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.communicate()


def leased(run: Path, index: int, **more: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Agent of a lease, with the variables that Slurm would give it."""
    slurm = {"SLURM_ARRAY_JOB_ID": "812", "SLURM_ARRAY_TASK_ID": str(index), "SLURMD_NODENAME": "node1", **more}
    return running(farandole("join", "-np", "1", str(run)), slurm)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Folder in which ranks write down their steps."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        yield Path(name)


def steps(path: Path, size: int = 2) -> list[float]:
    """Times at which ranks of generations of this size committed steps, in order."""
    lines = [line.split() for each in path.glob("steps.*") for line in each.read_text().splitlines()]
    return sorted(float(words[1]) for words in lines if len(words) == 2 and int(words[0]) == size)


def pause_s(path: Path, at_s: float, size: int = 2) -> float:
    """Longest time without a step around ``at_s``, once a generation of this size trains again."""
    until(lambda: steps(path, size)[-1] > at_s + SETTLED_S)
    times = sorted(itertools.chain.from_iterable(steps(path, each) for each in (1, 2, 3)))
    return max(b - a for a, b in itertools.pairwise(times) if b > at_s)


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(0.05)


def show(title: str, taken: dict[str, list[float]], unit: str) -> None:
    """Print a line for each contender: its median, and the median of its ratios to the first in the same round."""
    first = next(iter(taken.values()))
    for name, values in taken.items():
        ratio = Sample.of(one / base for one, base in zip(values, first, strict=True))
        median = statistics.median(values)
        print(f"{title:12} {name:24} {median:10.4g} {unit}   {ratio.median:.3f} ± {ratio.margin:.3f}", flush=True)


SECTIONS = {each.__name__: each for each in (small, tree, survey, controller, lead)}


def main() -> None:
    """Measure, and print as it comes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), help="of: " + " ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each (default: %(default)s)")
    told = parser.parse_args()
    for section in told.sections:
        SECTIONS[section](told.rounds)


if __name__ == "__main__":
    main()
