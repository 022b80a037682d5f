"""``farandole.run`` of an elastic job: a function on workers that come and go.

    run_elastic(JobRequest(job, np=None, hosts="", hostfile="hosts.txt", ssh=Ssh()), task)

The launcher of an elastic job needs a process of its own, with signals, children and no threads, which a notebook is
not: it is a child here. Function and results do not pass through it. Every worker, also one that comes late, fetches
the one from the caller, and brings it the other.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, final

import msgspec

from farandole.cluster.contact import Contact
from farandole.cluster.environment import CALLER
from farandole.control import process
from farandole.control.addresses import everywhere, own_endpoints, own_host_only
from farandole.control.channel import Router
from farandole.control.entry import entry_command
from farandole.control.keys import JobKeys, new_secret
from farandole.control.os_text import pack
from farandole.control.task_messages import FetchTask, TaskResult
from farandole.control.task_pieces import ResultPieces, piece_of
from farandole.errors import ControlError
from farandole.launch.agents.ssh import Ssh
from farandole.launch.function.results import Results, raise_again
from farandole.launch.hosts.elastic_job import ElasticJob, elastic_job
from farandole.launch.hosts.plan import Job
from farandole.launch.hosts.starters import Means
from farandole.launch.job.elastic_launcher import ElasticLauncher
from farandole.launch.job.loop import JobResult

MODULE = "farandole.launch.function.elastic_function"

Attended: TypeAlias = Callable[[int], contextlib.AbstractContextManager[None]]


@final
class JobRequest(msgspec.Struct, frozen=True):
    """Request of the caller, in the arguments of ``elastic_job``."""

    job: Job
    np: int | None
    hosts: str
    hostfile: str
    ssh: Ssh
    is_local: bool = False
    """True if all workers are on this host, whatever the host file is called."""

    def resolve(self) -> ElasticJob:
        """The job; raises ``UsageError`` for one that cannot be."""
        is_named = self.hosts or self.hostfile or self.job.settings.host_discovery_script
        means = Means("auto" if is_named and not self.is_local else "local", self.ssh)
        return elastic_job(self.job, self.np, self.hosts, self.hostfile, means, os.environ, socket.gethostname())


def _unattended(_launcher: int) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def run_elastic(request: JobRequest, task: bytes, attended: Attended = _unattended) -> list[Any]:
    """Run the job of ``farandole.run``; if it fails, raise what its last worker did, unless that tells of others.

    ``attended`` makes the context in which the launcher's process, by its number, may be signalled.
    """
    spread, settings = request.resolve().reaches_out, request.job.settings
    secret, results, pieces = new_secret(), Results(), ResultPieces()
    with Router(JobKeys.from_secret(secret), everywhere(settings.ports) if spread else own_host_only()) as router:
        addresses = own_endpoints(router.address, settings.network_interface) if spread else [router.address]
        told = {**request.job.environment, CALLER: Contact(addresses, secret).encode().decode()}
        job = msgspec.structs.replace(request.job, environment=told)
        with _Child(msgspec.structs.replace(request, job=job)) as launcher, attended(launcher.pid):
            router.watch(launcher.fd)
            while launcher.outcome is None:
                if router.wait():
                    launcher.attend()  # before the messages: all that workers sent before its end is then taken in
                while (got := router.recv()) is not None:
                    identity, message = got
                    if isinstance(message, FetchTask):
                        router.send(identity, piece_of(task, message))
                    elif isinstance(message, TaskResult) and (whole := pieces.add(identity, message)):
                        results.add(whole.worker_id, whole.ok, whole.payload)
            router.unwatch(launcher.fd)
    if launcher.outcome.status:
        if results.has_origin:  # else the job knows better why it ended
            raise_again(results.failures[::-1])
        raise ControlError(launcher.outcome.words)
    if not results.worker_ids:
        raise ControlError("all workers ended well but returned nothing: did the function call os._exit()?")
    return results.values()


@final
class _Child:
    """The process of the launcher. The kernel kills it when this one dies, and its agents end then."""

    def __init__(self, request: JobRequest) -> None:
        self.outcome: JobResult | None = None
        self._said = b""
        self._ours, theirs = socket.socketpair()
        self.fd = self._ours.fileno()
        # Not by ``spawn``'s own death signal, which takes a fork: the caller's program may have threads.
        command = process.bound(entry_command(MODULE), signal.SIGKILL, os.environ)
        with theirs:  # closed here, so that the end of the child is the end of the stream
            self.pid = process.spawn(command, stdin=theirs.fileno())
        with contextlib.suppress(BrokenPipeError):  # it has died, which the end of the stream says as well
            self._ours.sendall(pickle.dumps(request))

    def attend(self) -> None:
        """Take in what it says; ``outcome`` is there when it has ended."""
        try:
            text = self._ours.recv(2**16)
        except ConnectionResetError:
            text = b""
        self._said += text
        if not text:
            code = self._reap()
            died = JobResult(process.exit_status(code) or 1, f"the launcher {process.describe(code)}")
            self.outcome = msgspec.json.decode(self._said, type=JobResult) if self._said else died

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        while self.pid:  # we were interrupted; once more, and the workers get no time to end
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(self.pid, signal.SIGTERM)
                self._reap()
        self._ours.close()

    def _reap(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Entry of the launcher's process."""
    with socket.socket(fileno=0) as caller:
        with caller.makefile("rb") as file:
            request = pickle.load(file)  # noqa: S301 (from our parent)
        outcome = ElasticLauncher(request.resolve()).run()
        caller.sendall(pack(msgspec.json.encode, outcome))
    sys.exit(outcome.status)
