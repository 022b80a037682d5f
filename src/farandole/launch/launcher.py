"""The launcher: holds the controller, starts the agent, and turns the ends of workers into the end of the job.

    status = Launcher(Job(["python", "train.py"], hosts=("here",) * 4)).run().status

One single-threaded loop sleeps until a message, a signal or the end of the agent. Messages of workers go straight to
the ``Controller``; what an end means is decided by ``policy``. Nothing is decided here.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, final

import msgspec

from farandole.control import process
from farandole.control.messages import AgentHello, DumpStack, Exited, Goodbye, Stack, Started, StartWorkers, StopWorkers
from farandole.launch.charge import IDENTITY, MODULE, Charge
from farandole.launch.plan import Job, entry_command, workers
from farandole.launch.policy import INTERRUPTS, Action, Decision, End, Policy

if TYPE_CHECKING:
    from farandole.control.channel import Router
    from farandole.runtime.controller import Controller

GOODBYE_S = 2.0
"""How long the last messages of an agent that has ended may take to arrive."""

AGENT_END_S = 5.0
"""How long an agent that is no longer wanted may take to kill its workers."""


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
        self._host = job.hosts[0]
        self._policy = Policy(job.size, job.settings.on_failure)
        self._orders: StopWorkers | None = None
        self._agent_up = self._agent_done = False
        self._ended_at: float | None = None

    def run(self) -> Outcome:
        """Start everything, serve until the last worker has ended, and leave nothing behind."""
        if self._owns_process:
            self._others = set(process.descendants())  # a shell that became us may have left us children
            process.adopt_orphans()
        with contextlib.ExitStack() as held:
            self._start_agent()
            held.callback(self._sweep)
            self._signal_fd = held.enter_context(_signals(self._owns_process))
            self._router, self._controller = self._start_controller(held)
            self._serve()
        return Outcome(self._policy.status, self._policy.last_words())

    def _start_agent(self) -> None:
        """First of all: it loads its modules while we load ours."""
        reader, self._to_agent = os.pipe()
        try:
            self._agent = process.spawn(entry_command(MODULE), stdin=reader)
        finally:
            os.close(reader)
        self._agent_fd = os.pidfd_open(self._agent)

    def _start_controller(self, held: contextlib.ExitStack) -> tuple[Router, Controller]:
        from farandole.control.channel import Router
        from farandole.control.keys import JobKeys, new_secret
        from farandole.runtime.controller import Controller

        secret = new_secret()
        router = held.enter_context(Router(JobKeys.from_secret(secret)))
        self._charge_agent(router.address, secret)
        router.watch(self._agent_fd)
        if self._signal_fd is not None:
            router.watch(self._signal_fd)
        controller = Controller(router.send, self._job.settings, self._job.size, time.monotonic)
        controller.request_stack = self._request_stack
        controller.report = self._say
        controller.task = self._task
        controller.on_result = self._on_result
        return router, controller

    def _charge_agent(self, address: str, secret: str) -> None:
        job = self._job
        start = StartWorkers(
            workers(job, address, secret, os.environ),
            output_dir=os.path.abspath(job.output_dir) if job.output_dir else "",
            timestamps=job.timestamps,
            colour=_wants_colour(),
            cwd=os.getcwd(),
            size=job.size,
            grace_s=job.settings.grace_s,
        )
        charge = msgspec.json.encode(Charge(address, secret, self._host, start))
        with contextlib.suppress(BrokenPipeError), open(self._to_agent, "wb", closefd=False) as file:
            file.write(charge + b"\n")  # an agent that died already is noticed by the loop
        os.set_blocking(self._to_agent, False)

    def _serve(self) -> None:
        router, controller = self._router, self._controller
        while not self._over():
            ready = router.wait(self._patience_s())
            if ready:
                self._on_descriptors(ready)
            while (got := router.recv()) is not None:
                identity, message = got
                if identity.startswith(IDENTITY):
                    self._on_agent(message)
                else:
                    controller.handle(identity, message)
            deadline = controller.deadline()
            if deadline is not None and (now := time.monotonic()) >= deadline:
                controller.tick(now)

    def _over(self) -> bool:
        """True when the agent is gone, and its last messages are here or will not come."""
        if self._ended_at is None:
            return False
        if self._agent_done:
            return True
        if time.monotonic() < self._ended_at + GOODBYE_S:
            return False
        self._act(self._policy.agent_lost(self._host, self._agent_code))
        return True

    def _patience_s(self) -> float | None:
        deadlines = [self._controller.deadline()]
        if self._ended_at is not None:
            deadlines.append(self._ended_at + GOODBYE_S)
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _on_descriptors(self, ready: set[int]) -> None:
        if self._signal_fd in ready:
            for number in os.read(self._signal_fd, 4096):
                if number in INTERRUPTS:
                    decision = self._policy.interrupted(number)
                    self._say(decision.reason)
                    self._act(decision)
        if self._agent_fd in ready:
            self._router.unwatch(self._agent_fd)
            self._agent_code = os.waitstatus_to_exitcode(os.waitpid(self._agent, 0)[1])
            self._ended_at = time.monotonic() - (GOODBYE_S if self._agent_code else 0.0)

    def _on_agent(self, message: object) -> None:
        if isinstance(message, Exited):
            end = End(message.place, self._host, message.code, message.tail, message.error)
            self._controller.worker_exited(message.place, message.pid, message.code, str(end))
            self._act(self._policy.exited(end))
        elif isinstance(message, Stack):
            self._controller.stack_arrived(message.place, message.text)
        elif isinstance(message, AgentHello):
            self._agent_up = True
            if self._orders is not None:
                self._send_agent(self._orders)
        elif isinstance(message, Goodbye):
            self._agent_done = True
        elif isinstance(message, Started):
            self._controller.worker_started(message.place, message.pid, self._host)
            if self._job.verbose:
                self._say(f"started rank {message.place} on {self._host} as process {message.pid}")

    def _act(self, decision: Decision) -> None:
        if decision.action is not Action.GO_ON:
            grace_s = self._job.settings.grace_s if decision.action is Action.STOP else 0.0
            self._orders = StopWorkers(grace_s)
            if self._agent_up:
                self._send_agent(self._orders)
            elif decision.action is Action.KILL and self._ended_at is None:
                os.kill(self._agent, signal.SIGKILL)

    def _request_stack(self, place: int, pid: int, number: int, fd: int) -> None:
        self._send_agent(DumpStack(place, pid, number, fd))

    def _send_agent(self, message: StopWorkers | DumpStack) -> None:
        self._router.send(IDENTITY + self._host.encode(), message)

    def _say(self, text: str) -> None:
        """Print on standard error; while the agent lives it does that for us, so that no line is torn."""
        rest = f"farandole: {text}\n".encode()
        if self._agent_up and self._ended_at is None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                rest = rest[os.write(self._to_agent, rest) :]
        while rest:
            rest = rest[os.write(2, rest) :]

    def _sweep(self) -> None:
        """Whatever happened: the agent ends (it kills the workers when its input does), and nothing is left."""
        unheard = os.open(f"/proc/self/fd/{self._to_agent}", os.O_RDONLY | os.O_NONBLOCK)
        os.close(self._to_agent)
        if self._ended_at is None:
            if not select.select([self._agent_fd], [], [], AGENT_END_S)[0]:
                os.kill(self._agent, signal.SIGKILL)
            os.waitpid(self._agent, 0)
        os.close(self._agent_fd)
        with open(unheard, "rb") as file:
            if self._agent_up:  # it has read its charge; the rest is what we told it to print as it was about to end
                os.write(2, file.read() or b"")
        while self._owns_process and (left := set(process.descendants()) - self._others):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)


def _wants_colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def _signals(wanted: bool) -> Iterator[int | None]:
    """A descriptor that gets a byte for each signal that asks us to end; ``None`` and no change if not wanted."""
    if not wanted:
        yield None
        return
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # Signals that were ignored when we came (nohup, a job in the background of a script) stay ignored.
    heard = [number for number in INTERRUPTS if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda *_: None) for number in heard}
    try:
        yield reader
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
