"""The launcher of an elastic job.

    status, words = ElasticLauncher(ElasticJob(job, Watched("hosts.txt", 1), Ssh(), here="node1")).run()

Every host has its agent from the time when it is first needed, this one included. What happens is in ``elastic_loop``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from functools import partial
from typing import final

import msgspec

from farandole.control import process
from farandole.control.addresses import EVERYWHERE, own_endpoints, own_host_only
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.elastic.formation import ElasticFormation
from farandole.elastic.journal import Recorded
from farandole.elastic.membership import Membership
from farandole.elastic.policy import Policy
from farandole.engines.choose import choose
from farandole.errors import UsageError
from farandole.events import logger
from farandole.launch.agents import Agents
from farandole.launch.charge import Charge
from farandole.launch.elastic_job import ElasticJob
from farandole.launch.elastic_loop import ElasticLoop
from farandole.launch.launcher import DIAL_SHARE
from farandole.launch.loop import Outcome
from farandole.launch.policy import INTERRUPTS
from farandole.runtime.joining import ANY, configure_logging
from farandole.runtime.root import Root


@final
class ElasticLauncher:
    """Runs one job to its end, in a process that is its own."""

    def __init__(self, elastic: ElasticJob) -> None:
        settings = elastic.job.settings
        if not elastic.reaches_out:  # nobody's silence counts on the host of the controller
            settings = msgspec.structs.replace(settings, host_timeout_s=0.0)
        self._elastic, self._settings = elastic, settings

    def run(self) -> Outcome:
        """Serve until the job is over, and leave nothing behind."""
        settings = self._settings
        with contextlib.ExitStack() as held:
            held.enter_context(process.no_descendants_left())
            interrupts = held.enter_context(process.signals_as_bytes(INTERRUPTS))
            configure_logging(settings.log_level)
            secret = new_secret()
            spread = self._elastic.reaches_out
            router = held.enter_context(Router(JobKeys.from_secret(secret), EVERYWHERE if spread else own_host_only()))
            formation = self._formation(held)
            agents = held.enter_context(Agents([], settings, captured=True))
            held.callback(self._elastic.discovery.close)
            root = Root(router, settings, ANY, formation)
            charge = Charge(
                own_endpoints(router.address, settings.network_interface) if spread else [router.address],
                secret,
                dial_s=DIAL_SHARE * settings.start_timeout_s,
                silence_s=settings.host_timeout_s,
                interface=settings.network_interface,
                stays=True,
            )
            loop = ElasticLoop(self._elastic, agents, root, interrupts, formation, charge)
            held.enter_context(loop)
            return loop.run()

    def _formation(self, held: contextlib.ExitStack) -> ElasticFormation:
        settings = self._settings
        engine = partial(choose, settings.engine, across=settings.across)
        policy = Policy.of(settings)
        if not settings.elastic_journal:
            return ElasticFormation(Membership(policy), engine, time.monotonic)
        journal = held.enter_context(_JournalFile(settings.elastic_journal))
        return ElasticFormation(Recorded(policy, journal.write), engine, time.monotonic)


@final
class _JournalFile:
    """Whole lines, each in the file before the next one comes. A job does not end because its journal cannot go on."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UsageError(f"--elastic-journal {path}: {error.strerror}") from error
        self._is_whole = True

    def __enter__(self) -> _JournalFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def write(self, line: str) -> None:
        """The next line, unless one is missing before it: what comes after a gap cannot be replayed."""
        if not self._is_whole:
            return
        data = line.encode()
        try:
            self._is_whole = os.write(self._fd, data) == len(data)
            reason = "" if self._is_whole else os.strerror(errno.ENOSPC)
        except OSError as error:
            self._is_whole, reason = False, str(error.strerror)
        if reason:
            logger.warning("--elastic-journal %s: %s: it ends here, and the job goes on", self._path, reason)
