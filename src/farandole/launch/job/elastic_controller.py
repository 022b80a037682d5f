"""Controller of an elastic job, in a process of its own so that training survives its death.

    controller = ElasticController(elastic, settings, secret, journal=fd, copy=-1)
    pid = process.fork(lambda: controller.run(line, listen, Handover()), [line.fd, fd], death_signal=SIGKILL)

The launcher forks the controller, and forks another one if it exits before the job ends. Every decision is in the
journal before it is carried out; agents and workers report what they have carried out.

An ``ElasticController`` exists in two processes: in the launcher, where it only follows the journal, and in a fork,
where it runs and writes. One fork exists at a time. All share one open file with one offset, so the launcher reads with
``pread`` and never moves the offset. A fork may be killed in the middle of a line; both sides therefore count whole
lines only, and the next fork truncates the rest before it writes. A thread of the fork copies the journal for the user.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from functools import partial
from typing import final

import msgspec

from farandole.control import process
from farandole.control.channel import Router
from farandole.control.keys import JobKeys
from farandole.elastic.membership.formation import ElasticFormation
from farandole.elastic.membership.journal import Recorded
from farandole.elastic.membership.policy import Policy
from farandole.engines.choose import choose
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.job.elastic_loop import ElasticLoop
from farandole.launch.job.journal_copy import JournalCopy
from farandole.launch.job.launcher_agents import LauncherAgents
from farandole.launch.job.launcher_pipe import Finished, LauncherPipe, Listening
from farandole.launch.job.leadership import Leadership
from farandole.launch.job.loop import JobResult
from farandole.runtime.controller.inherited_generation import InheritedGeneration
from farandole.runtime.controller.root import Root
from farandole.runtime.coordination.stall import Limits
from farandole.runtime.session.init_arguments import ANY
from farandole.settings import Settings

COPY_S = 5.0
"""Time to complete the user's copy of the journal after the end of the job."""

PROCESS_NAME = "farandole-ctl"
"""Name of the process in ``ps``; the kernel accepts 15 characters."""


@final
class Handover(msgspec.Struct, frozen=True):
    """State left by previous controllers: the ``names`` of the last agents, by host, and the names still ``live``.

    ``decided``: the result of the job, if a controller decided to end it. ``gone``: leased hosts that were given up and
    are no longer used.
    """

    names: dict[str, str] = {}
    live: tuple[str, ...] = ()
    decided: JobResult | None = None
    gone: tuple[str, ...] = ()


@final
class ElasticController:
    """State common to all controllers of a job. ``journal``: memfd; ``copy``: descriptor of the user's file, or -1."""

    def __init__(
        self,
        elastic: ElasticJob,
        settings: Settings,
        secret: str,
        journal: int,
        copy: int,
        terms: Leadership | None = None,
    ) -> None:
        self._terms = terms
        self._elastic, self._settings, self._secret, self._journal = elastic, settings, secret, journal
        self._copy = JournalCopy(settings.elastic_journal, copy, journal)
        self._membership: Recorded | None = None
        """Membership that previous controllers left, from the part of the journal read so far."""
        self._read_bytes = 0

    def follow(self) -> None:
        """Read new lines of the journal. The launcher does so continuously, so that a fork has little left to read."""
        # By ``pread``: the offset belongs to the controller, which may be writing. Half a line is read next time.
        text = os.pread(self._journal, os.fstat(self._journal).st_size - self._read_bytes, self._read_bytes)
        whole = text[: text.rfind(b"\n") + 1]
        lines = [line.decode() for line in whole.splitlines(keepends=True)]  # str splits at more characters
        self._read_bytes += len(whole)
        if self._membership is not None:
            self._membership.follow(lines)
        elif lines:
            self._membership = Recorded(Policy.of(self._settings), self._write, lines)

    def run(self, line: LauncherPipe, listen: str, legacy: Handover) -> None:
        """Serve until the job is over, and send the launcher its result."""
        process.name_this(PROCESS_NAME)
        result = self._serve(line, listen, legacy)
        line.send(Finished(result.status, result.words))  # after all output and messages are sent

    def _serve(self, line: LauncherPipe, listen: str, legacy: Handover) -> JobResult:
        with contextlib.ExitStack() as held:
            router = held.enter_context(Router(JobKeys.from_secret(self._secret), listen))
            line.send(Listening(router.address))
            inherited = self.inherit()
            self._copy.begin(self._read_bytes)
            # Less than the hang timeout: the loop has ended and answers no ``Ping``.
            held.callback(self._copy.close, min(COPY_S, (self._settings.hang_timeout_s or math.inf) / 2))
            membership = inherited or Recorded(Policy.of(self._settings), self._write)
            adopts = self._adopt(membership)
            engine = partial(choose, self._settings.engine, across=self._settings.across)
            formation = ElasticFormation(membership, engine, time.monotonic)
            held.callback(self._elastic.discovery.close)  # after the loop, which watches its fds
            root = Root(router, self._settings, ANY, formation)
            root.controller.watching.resizable = self._terms is None  # else: farandole scale
            agents = LauncherAgents(line, legacy.live, inherits=self._elastic.inherits)
            loop = ElasticLoop(self._elastic, agents, root, line, formation, self._secret, self._terms)
            held.enter_context(loop)
            loop.refuse(legacy.gone)
            if inherited is not None or adopts:
                found = membership.generation, membership.members, membership.over
                limits = Limits.of(self._settings)
                root.controller.inherited = InheritedGeneration(router.send, formation, time.monotonic, *found, limits)
                formation.orders.extend([membership.finish] if membership.finish else [])
                loop.take_over(legacy.names, legacy.decided, adopts=adopts)
            return loop.run()

    def _adopt(self, membership: Recorded) -> bool:
        """Give a new membership the workers of the previous leader; False if there are none."""
        if self._terms is None or not self._terms.term.past.generation or membership.generation or membership.workers:
            return False
        membership.on(time.monotonic(), self._terms.term.adopted())
        return True

    def inherit(self) -> Recorded | None:
        """Membership from the journal, to which this controller appends; an incomplete last line is cut off."""
        self.follow()
        os.ftruncate(self._journal, self._read_bytes)
        os.lseek(self._journal, self._read_bytes, os.SEEK_SET)
        return self._membership

    def _write(self, line: str) -> None:
        os.write(self._journal, line.encode())
        self._copy.extend(os.lseek(self._journal, 0, os.SEEK_CUR))
