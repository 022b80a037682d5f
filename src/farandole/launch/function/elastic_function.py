"""``farandole.run`` of an elastic job: a function on workers that join and leave.

    run_elastic(JobRequest(job, np=None, hosts="", hostfile="hosts.txt", ssh=Ssh()), task)

The launcher of an elastic job needs its own process, with signal handlers, children and no threads, so a notebook
starts it as a child. Function and results do not pass through the launcher: every worker, also a late one, fetches the
function from the caller, and sends it the result.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, final

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
from farandole.launch.agents.agents import AgentStarter
from farandole.launch.agents.ssh import Ssh
from farandole.launch.function.results import Results, raise_again
from farandole.launch.hosts.discovery import Watched
from farandole.launch.hosts.elastic_job import ElasticJob, elastic_job, limits
from farandole.launch.hosts.plan import Job
from farandole.launch.hosts.starters import Means
from farandole.launch.job.elastic_launcher import ElasticLauncher
from farandole.launch.job.loop import JobResult

MODULE = "farandole.launch.function.elastic_function"

Attended: TypeAlias = Callable[[int], contextlib.AbstractContextManager[None]]


class SlotSource(Protocol):
    """Slots of a cluster that send messages to the router of ``run_elastic``."""

    @property
    def fd(self) -> int:
        """Descriptor that is readable when ``turn`` is due."""

    def turn(self) -> None:
        """Check for lost slots."""

    def handle_slot_message(self, identity: bytes, message: Any) -> None:
        """Handle a message that is not about the function."""


Slots: TypeAlias = Callable[[Router, list[str], str], contextlib.AbstractContextManager[SlotSource]]
"""Context with the slots of a job, made from its router, the router's addresses, and the secret."""


@final
class JobRequest(msgspec.Struct, frozen=True):
    """Request of the caller, as arguments of ``elastic_job``."""

    job: Job
    np: int | None
    hosts: str
    hostfile: str
    ssh: Ssh
    is_local: bool = False
    """True if all workers are on this host, even with a host file."""

    starter: AgentStarter | None = None
    """Starter of the agents on the hosts of ``hostfile``, which only it can resolve; ``None``: choose by host name."""

    def resolve(self) -> ElasticJob:
        """The job; raises ``UsageError`` if it is impossible."""
        if self.starter is not None:
            job = msgspec.structs.replace(self.job, settings=limits(self.job.settings, self.np))
            return ElasticJob(job, Watched(self.hostfile, 1), self.starter, "")
        is_named = self.hosts or self.hostfile or self.job.settings.host_discovery_script
        means = Means("auto" if is_named and not self.is_local else "local", self.ssh)
        return elastic_job(self.job, self.np, self.hosts, self.hostfile, means, os.environ, socket.gethostname())


def _unattended(_launcher: int) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def run_elastic(
    request: JobRequest, task: bytes, attended: Attended = _unattended, slots: Slots | None = None
) -> list[Any]:
    """Run the job of ``farandole.run``; if it fails, raise the last worker error that is not a consequence of another.

    ``attended``: makes a context, from the launcher's pid, in which the launcher may be signalled; ``slots``: makes the
    context with the slots of a cluster.
    """
    spread, settings = request.resolve().reaches_out, request.job.settings
    secret, results = new_secret(), Results()
    with Router(JobKeys.from_secret(secret), everywhere(settings.ports) if spread else own_host_only()) as router:
        addresses = own_endpoints(router.address, settings.network_interface) if spread else [router.address]
        told = {**request.job.environment, CALLER: Contact(addresses, secret).encode().decode()}
        job = msgspec.structs.replace(request.job, environment=told)
        with contextlib.ExitStack() as held:
            lent = held.enter_context(slots(router, addresses, secret)) if slots is not None else None
            launcher = held.enter_context(_Child(msgspec.structs.replace(request, job=job)))
            held.enter_context(attended(launcher.pid))
            take = _taker(router, task, results, lent)
            try:
                outcome = _serve(router, launcher, take, lent)
            except BaseException:
                if lent is not None:  # the launcher's agents end by messages that pass through this process
                    _see_out(router, launcher, take)
                raise
    if outcome.status:
        if results.has_origin:  # else the job's own text is better
            raise_again(results.failures[::-1])
        raise ControlError(outcome.words)
    if not results.worker_ids:
        raise ControlError("all workers ended well but returned nothing: did the function call os._exit()?")
    return results.values()


Take: TypeAlias = Callable[[bytes, object], None]


def _serve(router: Router, launcher: _Child, take: Take, slots: SlotSource | None) -> JobResult:
    """Hand out the function and collect its results until the launcher has exited."""
    fds = [launcher.fd, *([] if slots is None else [slots.fd])]
    try:
        for fd in fds:
            router.watch(fd)
        while launcher.outcome is None:
            ready = router.wait()
            if slots is not None and slots.fd in ready:
                slots.turn()
            if launcher.fd in ready:
                launcher.attend()  # before the messages: all that workers sent before its exit is then read below
            while (got := router.recv()) is not None:
                take(*got)
    finally:
        for fd in fds:
            router.unwatch(fd)
    return launcher.outcome


def _see_out(router: Router, launcher: _Child, take: Take) -> None:
    """End the job, and pass messages on until its launcher has exited; each further interrupt presses it."""
    while launcher.outcome is None:
        with contextlib.suppress(KeyboardInterrupt):
            launcher.end()
            _serve(router, launcher, take, None)


def _taker(router: Router, task: bytes, results: Results, slots: SlotSource | None) -> Callable[[bytes, object], None]:
    """Function that handles one message to the caller."""
    pieces = ResultPieces()

    def handle_task_message(identity: bytes, message: object) -> None:
        if isinstance(message, FetchTask):
            router.send(identity, piece_of(task, message))
        elif isinstance(message, TaskResult):
            if whole := pieces.add(identity, message):
                results.add(whole.worker_id, whole.ok, whole.payload)
        elif slots is not None:
            slots.handle_slot_message(identity, message)

    return handle_task_message


@final
class _Child:
    """The launcher's process. The kernel kills it when this process dies, and its agents then exit."""

    def __init__(self, request: JobRequest) -> None:
        self.outcome: JobResult | None = None
        self._said = b""
        self._ours, theirs = socket.socketpair()
        self.fd = self._ours.fileno()
        # Not with ``spawn``'s death signal, which needs a fork: the caller's program may have threads.
        command = process.bound(entry_command(MODULE), signal.SIGKILL, os.environ)
        with theirs:  # closed here, so that the child's exit closes the stream
            self.pid = process.spawn(command, stdin=theirs.fileno())
        with contextlib.suppress(BrokenPipeError):  # it has died; the closed stream shows that, too
            self._ours.sendall(pickle.dumps(request))

    def attend(self) -> None:
        """Read its result; sets ``outcome`` when it has exited."""
        try:
            text = self._ours.recv(2**16)
        except ConnectionResetError:
            text = b""
        self._said += text
        if not text:
            code = self._reap()
            died = JobResult(process.exit_status(code) or 1, f"the launcher {process.describe(code)}")
            self.outcome = msgspec.json.decode(self._said, type=JobResult) if self._said else died

    def end(self) -> None:
        """Ask the launcher to end the job; the second time, to kill its workers."""
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        while self.pid:  # interrupted: a second SIGTERM kills the workers at once
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(self.pid, signal.SIGTERM)
                self._reap()
        self._ours.close()

    def _reap(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Entry point of the launcher's process."""
    with socket.socket(fileno=0) as caller:
        with caller.makefile("rb") as file:
            request = pickle.load(file)  # noqa: S301 (from our parent)
        if request.starter is not None:  # its commands connect to this address
            os.environ[CALLER] = request.job.environment[CALLER]
        outcome = ElasticLauncher(request.resolve()).run()
        caller.sendall(pack(msgspec.json.encode, outcome))
    sys.exit(outcome.status)
