"""Elastic jobs that are struck while they train, and what their ledgers say of it.

with ElasticJob("cnn", 2, ["kill", "kill"]) as job:
    blows = job.run()
blows[0].pause_s, blows[0].parts
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, final

from benchmarks.elastic_rank import SAMPLES, write_hosts
from benchmarks.job import farandole
from farandole.events import Recovery
from farandole.testing.ledger import History, Voted, read
from workbench.cluster import HEAD, Cluster

JOB_S = 1200.0
OPTIONS = ("--blacklist-cooldown-range", "0", "0.2", "--host-timeout", "3")
PARTS = ("detect", "form", "agree", "transfer", "first step")


@final
@dataclass(frozen=True)
class Blow:
    """What a strike has cost, in seconds, by the survivor for which it took longest.

    ``until_next_s`` is from the strike to the next step that was voted, and ``parts`` are its parts; ``pause_s`` is how
    much longer than others the step was in which the workers changed; ``until_full_s`` is until all are back.
    """

    kind: str
    until_next_s: float
    parts: dict[str, float]
    pause_s: float
    until_full_s: float | None


@final
class ElasticJob:
    """``farandole run`` of ``elastic_rank``, on this machine, or on two hosts of a ``cluster``."""

    def __init__(self, network: str, workers: int, struck: list[str], cluster: Cluster | None = None) -> None:
        self._workers, self._faults, self._cluster = workers, struck, cluster
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._path = Path(self._folder.name)
        least = workers - 1 if cluster is None else workers // 2
        where = ["-H", ",".join(f"{node}:{workers // 2}" for node in cluster.nodes)] if cluster else []
        host = ""
        if "join" in struck or "leave" in struck:
            host = socket.gethostname()
            write_hosts(self._path, host, workers - (struck[0] == "join"))
            where = ["--hostfile", str(self._path / "hosts")]
        elif cluster is None:
            where = ["-np", str(workers)]
        rank = [sys.executable, "-m", "benchmarks.elastic_rank", str(self._path), network, str(workers)]
        job = farandole("run", *OPTIONS, *where, "--min-np", str(least), "--max-np", str(workers))
        self._command = [*job, *rank, ",".join(struck), *([host] if host else [])]

    def run(self, survived: Callable[[], object] = lambda: None) -> list[Blow]:
        """The whole job, checked: no step and no sample is lost or repeated, and all ranks have the same bits.

        ``survived`` is called after every strike.
        """
        with (self._path / "errors").open("w") as errors, self._start(errors) as process:
            deadline = threading.Timer(JOB_S, process.kill)
            deadline.start()
            for line in process.stdout or ():
                self._follow(line)
                if " is over" in line:
                    survived()
            process.wait()
            deadline.cancel()
        if process.returncode:
            raise RuntimeError(f"the elastic job failed\n{(self._path / 'errors').read_text()}")
        history = read(self._path)
        epochs = max(history.samples(), default=0)  # but for the last one, they are whole
        if problems := history.problems(SAMPLES, epochs):
            raise RuntimeError("the elastic job has gone wrong: " + "; ".join(problems))
        course, struck = Course(history, self._workers), faults(self._path)
        if [kind for kind, _ in struck] != self._faults:
            raise RuntimeError(f"the elastic job was struck {len(struck)} times, and not {len(self._faults)}")
        return [course.blow(kind, at_s) for kind, at_s in struck]

    def _start(self, errors: IO[str]) -> subprocess.Popen[str]:
        told = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0" if self._cluster else "lo"}
        if self._cluster is not None:
            return self._cluster.popen(HEAD, self._command, env=told, stdout=subprocess.PIPE, stderr=errors)
        told = {**os.environ, **told}
        return subprocess.Popen(self._command, env=told, stdout=subprocess.PIPE, stderr=errors, text=True)

    def _follow(self, line: str) -> None:
        """Do what workers cannot do themselves."""
        if self._cluster is None:
            return
        victim = self._cluster.nodes[-1]
        if "power is wanted" in line:
            with (self._path / "strikes").open("a") as file:
                file.write(f"power {time.monotonic()}\n")
            self._cluster.kill(victim)
        elif "power is over" in line:
            self._cluster.boot(victim)

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._folder.cleanup()


def faults(folder: Path) -> list[tuple[str, float]]:
    """Kinds and times of those in ``folder``."""
    lines = [line.split() for line in (folder / "strikes").read_text().splitlines()]
    return [(kind, float(at)) for kind, at in lines]


@final
class Course:
    """When each worker of a job has made which step."""

    def __init__(self, history: History, workers: int) -> None:
        self._workers = workers
        self._steps: dict[int, dict[str, list[float]]] = {}
        self._recovered: dict[tuple[int, str], Recovery] = {}
        for worker, records in history.workers.items():
            for record in records:
                if isinstance(record, Voted):
                    self._steps.setdefault(record.generation, {}).setdefault(worker, []).append(record.time_s)
                elif isinstance(record, Recovery):
                    self._recovered[record.generation, worker] = record

    def blow(self, kind: str, at_s: float) -> Blow:
        """What the strike at that time has cost."""
        generations = sorted(self._steps)
        struck = max(g for g in generations if any(times[0] <= at_s for times in self._steps[g].values()))
        after = min(g for g in generations if g > struck)
        worker, next_s = max(((w, times[0]) for w, times in self._survivors(struck, after)), key=lambda each: each[1])
        told = self._recovered[after, worker]
        parts = [told.form_s, told.agree_s, told.transfer_s, told.first_step_s]
        parts = [next_s - at_s - sum(parts), *parts]
        full = [g for g in generations if g > struck and len(self._steps[g]) == self._workers]
        full_s = max(times[0] for times in self._steps[full[0]].values()) - at_s if full else None
        pause_s = max(self._pause_s(struck, after, w) for w, _ in self._survivors(struck, after))
        return Blow(kind, next_s - at_s, dict(zip(PARTS, parts, strict=True)), pause_s, full_s)

    def _survivors(self, before: int, after: int) -> list[tuple[str, list[float]]]:
        return [(worker, times) for worker, times in self._steps[after].items() if worker in self._steps[before]]

    def _pause_s(self, before: int, after: int, worker: str) -> float:
        last, times = self._steps[before][worker][-1], self._steps[after][worker]
        return times[0] - last - statistics.median(b - a for a, b in pairwise(times))
