"""The launcher: holds the controller, starts the agent, and turns the ends of workers into the end of the job.

    status, words = Launcher(Job(["python", "train.py"], hosts=("here",) * 4)).run()

One single-threaded loop sleeps until a message, a signal or the end of the agent. Messages of workers go straight to
the ``Controller``; what an end means is decided by ``policy``. Nothing is decided here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, final

from farandole.control import process
from farandole.control.agent_messages import AgentHello, Exited, Goodbye, Stack, Started, StartWorkers, StopWorkers
from farandole.launch.charge import Charge
from farandole.launch.local import LocalAgent
from farandole.launch.plan import Job, workers
from farandole.launch.policy import INTERRUPTS, Action, Decision, End, Policy

if TYPE_CHECKING:
    from farandole.runtime.root import Root

GOODBYE_S = 2.0
"""How long the last messages of an agent that has ended well may take to arrive."""


class Outcome(NamedTuple):
    """How a job ended: its exit status, and why it is not 0."""

    status: int
    words: str


@final
class Launcher:
    """Runs one job to its end, on this host.

    ``task`` is what workers get that ask for it, ``on_result`` is called with what they send back (``farandole.run``).
    With ``owns_process`` (the command line) signals end the job and orphans of a killed agent are ended too; without it
    (inside somebody's program) neither handlers nor other children are touched.
    """

    def __init__(
        self,
        job: Job,
        *,
        task: bytes = b"",
        on_result: Callable[[int, bool, bytes], None] | None = None,
        owns_process: bool = False,
    ) -> None:
        self._job = job
        self._task, self._on_result = task, on_result
        self._owns_process = owns_process

    def run(self) -> Outcome:
        """Start everything, serve until the last worker has ended, and leave nothing behind."""
        with contextlib.ExitStack() as held:
            interrupts = -1
            if self._owns_process:
                held.enter_context(process.no_descendants_left())
                interrupts = held.enter_context(process.signals_as_bytes(INTERRUPTS))
            agent = held.enter_context(LocalAgent())
            # Loaded only now: the agent loads its modules meanwhile.
            from farandole.control.channel import Router
            from farandole.control.keys import JobKeys, new_secret
            from farandole.runtime.joining import configure_logging
            from farandole.runtime.root import Root

            if self._owns_process:
                configure_logging(self._job.settings.log_level)
            secret = new_secret()
            router = held.enter_context(Router(JobKeys.from_secret(secret)))
            agent.charge(_charge(self._job, router.address, secret))
            root = Root(router, self._job.settings, self._job.size)
            root.controller.task, root.controller.on_result = self._task, self._on_result
            return _Loop(self._job, agent, root, interrupts).run()


@final
class _Loop:
    """The loop of a running job. ``interrupts`` is a descriptor with a byte for each signal, or -1."""

    def __init__(self, job: Job, agent: LocalAgent, root: Root, interrupts: int) -> None:
        self._job, self._agent, self._root, self._controller = job, agent, root, root.controller
        self._host = job.hosts[0]
        self._policy = Policy(job.size, job.settings.on_failure)
        self._interrupts = interrupts
        self._orders: StopWorkers | None = None
        self._said_goodbye = False
        self._wait_until: float | None = None
        self._await_until: float | None = None
        root.on_agent = self._on_agent
        root.controller.report = agent.say
        for fd in (agent.fd, interrupts):
            if fd >= 0:
                root.router.watch(fd)

    def run(self) -> Outcome:
        """Serve until the agent has ended."""
        while not self._over():
            moments = [moment for moment in (self._wait_until, self._await_until) if moment is not None]
            self._on_descriptors(self._root.turn(min(moments, default=None)))
            if self._await_until is not None and time.monotonic() >= self._await_until:
                self._act(self._policy.overdue())
        return Outcome(self._policy.status, self._policy.last_words())

    def _over(self) -> bool:
        """True when the agent has ended, and its last messages are here or will not come."""
        code = self._agent.code
        if code is None or self._said_goodbye:
            return code is not None
        if code == 0 and self._wait_until is not None and time.monotonic() < self._wait_until:
            return False
        self._act(self._policy.agent_lost(self._host, code))
        return True

    def _on_descriptors(self, ready: set[int]) -> None:
        if self._interrupts in ready:
            for number in os.read(self._interrupts, 4096):
                if number in INTERRUPTS:
                    decision = self._policy.interrupted(number)
                    self._agent.say(decision.reason)
                    self._act(decision)
        if self._agent.fd in ready:
            self._root.router.unwatch(self._agent.fd)
            self._agent.reap()
            self._wait_until = time.monotonic() + GOODBYE_S

    def _on_agent(self, host: str, message: object) -> None:
        if isinstance(message, Exited):
            end = End(message.place, host, message.code, message.tail, message.error)
            self._controller.worker_exited(message.place, message.pid, message.code, str(end))
            self._act(self._policy.exited(end, self._controller.left()))
        elif isinstance(message, Stack):
            self._controller.stack_arrived(message.place, message.text)
        elif isinstance(message, Started):
            self._controller.worker_started(message.place, message.pid, host)
            if self._job.verbose:
                self._agent.say(f"started rank {message.place} on {host} as process {message.pid}")
        elif isinstance(message, AgentHello):
            self._agent.up = True
            if self._orders is not None:
                self._root.tell(host, self._orders)
        elif isinstance(message, Goodbye):
            self._said_goodbye = True

    def _act(self, decision: Decision) -> None:
        if decision.action is Action.GO_ON:
            return
        if decision.action is Action.AWAIT:
            self._await_until = self._await_until or time.monotonic() + self._job.settings.grace_s
            return
        self._await_until = None
        self._orders = StopWorkers(self._job.settings.grace_s if decision.action is Action.STOP else 0.0)
        if self._agent.up:
            self._root.tell(self._host, self._orders)
        elif decision.action is Action.KILL:
            self._agent.kill()


def _charge(job: Job, address: str, secret: str) -> Charge:
    start = StartWorkers(
        workers(job, address, secret, os.environ),
        output_dir=os.path.abspath(job.output_dir) if job.output_dir else "",
        timestamps=job.timestamps,
        colour=os.isatty(1) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        cwd=os.getcwd(),
        size=job.size,
        grace_s=job.settings.grace_s,
    )
    return Charge(address, secret, job.hosts[0], start)
