"""Provider whose processes are jobs of Flux, one job per process.

    provider = FluxProvider({"node7": 4, "node8": 4}, options=["--cores-per-task=8", "--gpus-per-task=1"])
    result = farandole.search(train, space, workers=(1, 4), pool=provider, folder="/shared/runs/lr")

It is for a search inside a Flux instance that has its nodes (``flux alloc``, ``flux batch``): a job that waits in a
queue is a process that does not connect. Tests use a stand-in for Flux; this was never tried with a real one. Names
and formats are those of flux-submit(1), flux-jobs(1), flux-cancel(1) and flux-job(1), of flux-core.

Hosts are nodes, and each job is bound to one, because ranks on one host share memory. A worker's variables go through
``--env-file``: ``flux submit`` may be a program for another Python than that of their ``PYTHONPATH``, and arguments are
public, but not the search's secret. ``flux cancel`` sends SIGTERM, and SIGKILL 5 s later.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from subprocess import PIPE, STDOUT, Popen
from typing import Any, TypeAlias, final

from farandole.cluster.contact import Contact
from farandole.control.agent_messages import Started, WorkerSpec
from farandole.control.exits import WorkerExited
from farandole.control.process import describe
from farandole.errors import UsageError
from farandole.events import logger
from farandole.launch.providers import provider
from farandole.runtime.coordination.downlink import Send

FORMAT = "{id.f58} {state} {returncode:h} {exception.note}"
AT_ONCE, CLOSE_S = 8, 60.0  # commands that run at the same time; longest wait of ``close`` for canceled jobs
Answer: TypeAlias = Callable[[int, str], object]  # gets the exit status of a command, and all that it has written


@final
@dataclass
class _FluxJob:
    jobid: str = ""  # until ``flux submit`` has printed it
    has_begun: bool = False  # its pid was told, or is asked for
    is_unwanted: bool = False


@final
class FluxProvider(provider.Provider):
    """``slots`` by host, as Flux names hosts. ``options`` of ``flux submit`` hold for each process: cores, GPUs, queue.

    ``command``: path of Flux. ``poll_s``: seconds between calls of ``flux jobs``. ``UsageError``: no slots, or no Flux.
    """

    def __init__(
        self, slots: Mapping[str, int], options: Sequence[str] = (), command: str = "flux", poll_s: float = 2.0
    ) -> None:
        super().__init__()
        if sum(slots.values()) < 1:
            raise UsageError(f"slots={dict(slots)} has no slot; give them by host: FluxProvider({{'node7': 4}})")
        if shutil.which(command) is None:
            raise UsageError(f"no command {command!r} in PATH: load Flux, or give command='/path/to/flux'")
        self.slots = dict(slots)
        self.reaches_out = set(slots) != {socket.gethostname()}
        self._options, self._command, self._poll_s = list(options), command, poll_s
        self._jobs: dict[int, _FluxJob] = {}
        self._waiting: deque[tuple[list[str], Answer, str]] = deque()
        self._calls: dict[int, tuple[Popen[bytes], bytearray, Answer]] = {}
        self._look_s = math.inf

    @property
    def fds(self) -> Collection[int]:
        """See ``Provider``."""
        return self._calls.keys()

    @property
    def deadline_s(self) -> float:
        """See ``Provider``."""
        return min(super().deadline_s, self._look_s)

    def open(self, contact: Contact, send: Send) -> None:
        """See ``Provider``."""
        self._news += [provider.HostOffered(host, slots) for host, slots in self.slots.items()]

    def start(self, host: str, workers: Sequence[WorkerSpec]) -> None:
        """See ``Provider``."""
        for worker in workers:
            self._jobs[worker.worker_id] = _FluxJob()
            own = {**provider.environment_of({}, provider.own_path()), **worker.environment}
            rules = "".join(f"{name}={value.replace('$', '$$')}\n" for name, value in own.items())
            bound = ["--ntasks=1", f"--requires=host:{host}", "--env-file=/dev/stdin"]
            words = ["submit", *bound, *self._options, *worker.command]
            self._call(words, partial(self._on_submitted, worker.worker_id), rules)

    def kill(self, host: str, worker_id: int, number: int = signal.SIGKILL) -> None:
        """See ``Provider``. A job that has no id yet is canceled once it has one."""
        if job := self._jobs.get(worker_id):
            job.is_unwanted = True
            if job.jobid:
                self._call(["cancel", job.jobid], lambda *_: None)  # which fails if it has ended meanwhile

    def events(
        self, now: float, ready: Collection[int] = (), mail: Sequence[tuple[bytes, Any]] = ()
    ) -> list[provider.ProviderEvent]:
        """See ``Provider``."""
        for fd in [each for each in self._calls if each in ready]:
            process, text, answer = self._calls[fd]
            if more := os.read(fd, 1 << 16):
                text += more
            else:
                del self._calls[fd]
                process.communicate()
                answer(process.returncode, text.decode(errors="replace").strip())
        if now >= self._look_s:
            self._look_s = math.inf
            if jobids := [job.jobid for job in self._jobs.values() if job.jobid]:
                self._call(["jobs", "-n", "-o", FORMAT, *jobids], self._on_listed)
        self._call_next()
        return self._told()

    def close(self) -> None:
        """See ``Provider``. Gives up after a minute, if Flux does not end the jobs."""
        cancel_s = time.monotonic() + provider.LEAVE_S
        while (self._jobs or self._calls) and (now := time.monotonic()) < cancel_s + CLOSE_S:
            for worker_id in [each for each, job in self._jobs.items() if not job.is_unwanted and now >= cancel_s]:
                self.kill("", worker_id)
            ready = wait(list(self._calls), min(max(0.0, self.deadline_s - now), provider.LEAVE_S))
            self.events(time.monotonic(), [each for each in ready if isinstance(each, int)])
        if self._jobs:
            logger.warning("jobs of Flux may still run: %s", [job.jobid for job in self._jobs.values()])
        for process, *_ in self._calls.values():
            process.kill()
            process.communicate()
        self._jobs, self._calls = {}, {}

    def _call(self, words: list[str], answer: Answer, text: str = "") -> None:
        self._waiting.append(([self._command, *words], answer, text))
        self._call_next()

    def _call_next(self) -> None:
        while self._waiting and len(self._calls) < AT_ONCE:
            words, answer, text = self._waiting.popleft()
            variables = provider.environment_of(os.environ, [])
            with tempfile.TemporaryFile() as file:
                file.write(text.encode())
                file.flush()
                # In its own session: Ctrl-C must not end a command that has submitted a job before it prints the id.
                process = Popen(words, stdin=file, stdout=PIPE, stderr=STDOUT, env=variables, start_new_session=True)
            assert process.stdout is not None
            self._calls[process.stdout.fileno()] = process, bytearray(), answer

    def _on_submitted(self, worker_id: int, status: int, text: str) -> None:
        job = self._jobs[worker_id]
        job.jobid = text.rpartition("\n")[2].replace("ƒ", "f")
        if status or not job.jobid:
            del self._jobs[worker_id]
            self._news.append(WorkerExited(worker_id, status or 1, error=f"was not submitted: {text}"))
        elif job.is_unwanted:
            self.kill("", worker_id)
        self._look_s = min(self._look_s, time.monotonic() + self._poll_s)

    def _on_listed(self, status: int, text: str) -> None:
        if status:
            logger.warning("flux jobs exited with %d: %s", status, text)
        lines = text.replace("ƒ", "f").splitlines()  # warnings are among them
        states = {words[0]: words[1:] for line in lines if len(words := line.split(maxsplit=3)) >= 3}
        for worker_id, job in list(self._jobs.items()):
            state, code, *note = states.get(job.jobid, ("", ""))
            if state == "INACTIVE":
                del self._jobs[worker_id]
                told = "; ".join([describe(_code_of(code)), *note, f"flux job attach {job.jobid} shows its output"])
                self._news.append(WorkerExited(worker_id, _code_of(code), told))
            elif state == "RUN" and not job.has_begun:
                job.has_begun = True
                self._call(["job", "hostpids", "--timeout=5s", job.jobid], partial(self._on_pid, worker_id))
        self._look_s = time.monotonic() + self._poll_s if self._jobs else math.inf

    def _on_pid(self, worker_id: int, status: int, text: str) -> None:
        pid = text.rpartition(":")[2]
        if job := self._jobs.get(worker_id):
            job.has_begun = status == 0 and pid.isdecimal()  # else it is asked for again
            self._news += [Started(worker_id, int(pid))] if job.has_begun else []


def _code_of(returncode: str) -> int:
    """Code as of ``waitpid``; a job that was canceled before it ran has -128, one that cannot run none.

    >>> _code_of("3"), _code_of("137"), _code_of("-128"), _code_of("-")
    (3, -9, -15, 1)
    """
    code = 1 if returncode == "-" else int(returncode)
    return -signal.SIGTERM if code == -128 else 128 - code if 128 < code <= 128 + 64 else code
