"""The agent: one small process per host that starts, watches and ends workers and forwards their output.

The launcher starts it, as a child or through ssh or Slurm, with its config, one line of JSON, on standard input; or a
lease starts it to lend its host (``leased_agent``), without that input. When that input, the connection to the
controller or the process that started it ends, the agent kills the workers and exits. In an elastic job another
controller may replace a lost one. When the agent itself is killed, the kernel kills the workers. In a job on one host,
further standard input is printed on standard error, between the workers' lines. No framework is imported here.

The main thread runs the loop (``relay.agent``) and owns every field of ``LaunchedWorkers``, so no lock is needed.
Signals are bytes in a pipe: no handler runs between two lines of the loop. The pumps of ``JobOutput`` are separate
threads, because a reader of the output may be slow; they call only ``AgentLink.send``. Only the loop reaps: until then
a pid in ``_workers`` belongs to the worker, at worst to a zombie, and a signal cannot hit another process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable

import msgspec

from farandole.cluster.environment import CONTROLLER, OUTPUT, OWN
from farandole.control import process
from farandole.control.agent_messages import (
    Goodbye,
    KillWorker,
    Leaving,
    PassSignal,
    Report,
    Started,
    StartWorkers,
    StopWorkers,
    WorkerSpec,
    Written,
)
from farandole.control.dial import first_answering
from farandole.control.exits import WorkerExited
from farandole.control.keys import JobKeys
from farandole.control.message import Message
from farandole.control.oom_kills import OomKills
from farandole.control.os_text import printed, unpack
from farandole.errors import ControlError, UsageError
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.agents.output import STDERR, JobOutput
from farandole.launch.agents.worker_output import WorkerOutput, pipes
from farandole.runtime.relay.agent import Agent, Workers, connected
from farandole.runtime.relay.agent_link import AgentLink

SIGNALS = (signal.SIGCHLD, signal.SIGTERM, *process.PASSED_ON)
"""Signals that the agent handles. Those that a scheduler sends to all processes of a job (USR1, USR2) are for workers:
they must only not kill the agent.
"""

SLURM_HOST = "SLURMD_NODENAME"
"""Variable in which Slurm passes a task the name of its host."""

SSH_SESSION = ("SSH_CLIENT", "SSH_CONNECTION", "SSH2_CLIENT")
"""Variables of the ssh session that started the agent. A bash that finds them runs the user's start-up files, and
prints their output.
"""

SETTLE_S = 1.0
"""Longest delay of exit reports to read the last output; reached only if the output is not consumed."""

KILL_AGAIN_S = 0.2
COMES_BACK_S = 10.0
"""Time that workers of an elastic job live without a controller: its launcher starts another one at once."""

MOST_ENDS = 100
"""Number of last exits reported to a new controller; it counts other missing workers as killed."""

GIVE_UP_S = 1.0
"""Time to write the remaining output in an agent that must exit at once, or has lost its launcher."""

LAST_KILL_S = 10.0
"""Time for an exiting agent to kill leftover processes of workers: a process stuck on a file server may not die."""


class LaunchedWorkers(Workers):
    """Workers that the agent starts as children on orders of the controller; it handles their output and exit.

    ``address``: the controller's; ``signals``: descriptor that gets a byte for each of ``SIGNALS``. An agent of a lease
    has ``LeasedWorkers``.
    """

    _patience_s, _is_elsewhere = COMES_BACK_S, False
    """How long the workers live without a controller, and whether the next one may run on another host."""

    def __init__(self, config: LaunchedAgentConfig, address: str, signals: int) -> None:
        self._config, self._address, self._signals = config, address, signals
        self._start: StartWorkers | None = None
        self._output: JobOutput | None = None
        self._streams: WorkerOutput | None = None
        self._writing: set[int] = set()
        self._workers: dict[int, int] = {}
        self._news: list[Started | Report] = []
        """Starts and refused starts not yet reported to the controller."""
        self._ended: deque[WorkerExited] = deque(maxlen=MOST_ENDS)
        self._link: AgentLink | None = None
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._spare_until: float | None = None
        """Time at which leftover resource trackers are killed."""
        self._finishing = self._dismissed = False
        self._heard = b""
        self._shortage = OomKills()
        self._launcher_lives = True
        self._parent = os.getppid()

    def join(self, link: AgentLink) -> None:
        """Report started workers to the controller, and obey it from now on."""
        self._link = link
        self._report_start()
        self._reap()  # if no worker could start, there may be no SIGCHLD

    def disconnect(self) -> None:
        """Send ``Goodbye`` to the controller, unless it is lost."""
        self._post(Goodbye())
        if self._link is not None:
            self._link.close()

    # -- called by the loop -------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True if all workers have exited and all output is written, or the deadline for that is over."""
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            return True
        if self._output is None:
            return self._dismissed
        return not self._writing and self._output.delivered

    @property
    def fds(self) -> dict[int, int]:
        """Descriptors of signals, of the end of output, and standard input (only its hang-up after all have exited)."""
        # The launcher itself prints its last messages.
        heard = {0: 0 if self._finishing else select.POLLIN} if self._launcher_lives else {}
        return {self._signals: select.POLLIN, **heard, **dict.fromkeys(self._writing, select.POLLIN)}

    @property
    def deadline_s(self) -> float | None:
        """See ``Workers``."""
        moments = (self._kill_at, self._give_up_at, self._spare_until)
        return min((moment for moment in moments if moment is not None), default=None)

    def attend(self, ready: set[int]) -> None:
        """See ``Workers``."""
        if self._signals in ready:
            self._on_signals()
        if 0 in ready and self._launcher_lives:
            self._print_launcher_text()
        self._writing -= ready

    def tick(self, now: float) -> None:
        """See ``Workers``."""
        if self._kill_at is not None and now >= self._kill_at:
            self._stop(0.0)
        if self._spare_until is not None and now >= self._spare_until:
            self._kill_left()

    def cut_off(self, error: ControlError) -> None:
        """Wait for another controller, if one may come; otherwise kill the workers and exit."""
        if self._link is not None and self._config.stays and self._link.may_come_back:
            self._renew(self._link)
        else:
            self._give_up(error)

    def obey(self, message: object) -> None:
        """See ``Workers``."""
        if isinstance(message, StartWorkers) and self._link is not None and not self._dismissed:
            if self._output is None or self._streams is None:
                for name in SSH_SESSION:
                    os.environ.pop(name, None)
                self.begin(message, JobOutput.remote(self._link.send))
            else:
                self._start_workers(message, self._streams)
            self._report_start()
            self._reap()
        elif isinstance(message, Written) and self._output is not None:
            self._output.written(message)
        elif isinstance(message, KillWorker):
            self._kill(message.worker_id)
        elif isinstance(message, PassSignal):
            process.signal_handlers(self._workers, message.number)
        elif isinstance(message, StopWorkers):
            self._dismiss(message.grace_s)

    # -- starts -------------------------------------------------------------------------------------------------------

    def begin(self, start: StartWorkers, output: JobOutput) -> None:
        """Start the first workers, and the threads that write their output."""
        self._start, self._output = start, output
        self._streams = WorkerOutput(start, output)
        self._start_workers(start, self._streams)  # before the pump threads: a death signal needs a fork
        output.start()
        self._writing = set(output.ended)

    def _start_workers(self, start: StartWorkers, streams: WorkerOutput) -> None:
        known = {
            *self._workers.values(),
            *(each.worker_id for each in self._ended),
        }  # a new controller may repeat an order
        for spec in start.workers:
            if spec.worker_id not in known:
                self._start_worker(spec, start, streams)

    def _start_worker(self, spec: WorkerSpec, start: StartWorkers, streams: WorkerOutput) -> None:
        contact = {CONTROLLER: self._worker_address}
        own, cwd = self._config, "" if self._config.command else start.cwd
        environment = {**_threads(spec), **os.environ, **start.environment, **own.variables}
        environment |= {**spec.environment, **contact}
        command = list(own.command) or spec.command
        death_signal: int | None = signal.SIGKILL
        try:
            if self._link is not None:  # no fork: the link's threads may hold a lock
                command, death_signal = process.bound(command, signal.SIGKILL, environment, cwd), None
            with streams.open(spec.worker_id) as (stdout, stderr):
                environment[OUTPUT] = pipes(stdout, stderr)
                pid = process.spawn(
                    command,
                    death_signal=death_signal,
                    stdout=stdout,
                    stderr=stderr,
                    environment=environment,
                    cwd=cwd,
                )
        except UsageError as error:
            self._refuse(spec, process.NOT_EXECUTABLE, str(error))
        except OSError as error:
            self._refuse(spec, *process.refusal(list(own.command) or spec.command, error))
        else:
            self._workers[pid] = spec.worker_id
            self._news.append(Started(spec.worker_id, pid))

    @property
    def _worker_address(self) -> str:
        """Address at which workers of this host reach the controller."""
        return self._address if self._link is None else self._link.worker_address

    def _refuse(self, spec: WorkerSpec, code: int, words: str) -> None:
        self._ended.append(WorkerExited(spec.worker_id, code, error=words))
        self._news.append(Report(self._ended[-1]))

    def _report_start(self) -> None:
        for message in self._news:
            self._post(message)
        self._news.clear()

    # -- signals and exits --------------------------------------------------------------------------------------------

    def _on_signals(self) -> None:
        if signal.SIGTERM in os.read(self._signals, 4096):
            # With a new parent, SIGTERM is the kernel's signal for the first parent's death, not a scheduler's notice.
            if os.getppid() == self._parent:
                self._on_notice()
            else:
                self._orphaned()
        self._reap()

    def _on_notice(self) -> None:
        """Handle the SIGTERM of a scheduler that takes the host back."""
        if not self._config.stays:
            self._orphaned()
        elif not self._dismissed and self._workers:
            self._post(Leaving())
            self._depart()
        elif not self._dismissed or self._kill_at is None:  # else they already end, within the launcher's grace
            self._orphaned()

    def _print_launcher_text(self) -> None:
        """Print the launcher's text from standard input; end of file means that the launcher has exited."""
        # At the end only a hang-up leads here (see ``fds``): the launcher itself prints unread text.
        text = b"" if self._finishing else os.read(0, 2**16)
        lines, newline, self._heard = (self._heard + text).rpartition(b"\n")
        if newline and self._output is not None:
            self._output.queue_lines(STDERR, lines + newline)
        if not text:
            self._launcher_lives = False
            self._orphaned()

    def _renew(self, link: AgentLink, address: str = "") -> None:
        """Wait for another controller: the launcher lives (else standard input would be closed) and starts one."""
        running = [Started(worker_id, pid) for pid, worker_id in self._workers.items()]
        link.renew(self._patience_s, running, self._ended, elsewhere=self._is_elsewhere, address=address)
        if self._output is not None:
            self._output.forgive()  # receipts were lost with the controller

    def _dismiss(self, grace_s: float) -> None:
        """End the workers on the controller's order; without grace, do not wait for the output either."""
        self._dismissed = True
        if not grace_s or self._kill_at is None:  # a new controller may repeat an order
            self._stop(grace_s)
        self._reap()  # without workers there is no SIGCHLD
        if not grace_s:  # at once, even if the output is not consumed
            self._give_up_at = time.monotonic() + GIVE_UP_S

    def _post(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)

    def _reap(self) -> None:
        ended = list(process.reap())
        # Checked once for all of them, and only after a kill: each check counts from the one before.
        settled_s = time.monotonic() + SETTLE_S  # in total: the controller waits for heartbeats meanwhile
        is_short = any(code == -signal.SIGKILL for _, code in ended) and self._shortage.has_struck()
        for pid, code in ended:
            if pid in self._workers:
                worker_id = self._workers.pop(pid)
                is_victim = is_short and code == -signal.SIGKILL
                # Kept as well as sent: if the controller dies before it has recorded it, the next one gets it.
                tail = self._last_words(worker_id, code, settled_s)
                self._ended.append(WorkerExited(worker_id, code, pid=pid, tail=tail, out_of_memory=is_victim))
                self._post(Report(self._ended[-1]))
        if ended and self._kill_at is not None:  # its leftovers were spared while it ran
            process.signal_descendants(signal.SIGTERM, but=self._workers)
        if self._config.stays and not self._dismissed:
            self._kill_left()
            return
        if self._start is None or self._output is None or self._workers or self._finishing:
            return
        if not process.has_children():
            self._finishing, self._kill_at = True, None
            self._output.finish()
        elif self._kill_at is None:
            self._stop(self._start.grace_s)

    def _last_words(self, worker_id: int, code: int, settled_s: float) -> str:
        """Last lines of its standard error, if its failure may be the cause of the job's end."""
        if self._streams is None:
            return ""
        is_cause = code and self._kill_at is None
        tail = self._streams.tail(worker_id, max(0.0, settled_s - time.monotonic())) if is_cause else ""
        self._streams.forget(worker_id)
        return tail

    def _kill(self, worker_id: int) -> None:
        """Kill a worker and the processes that it started."""
        for pid in [pid for pid, own in self._workers.items() if own == worker_id]:
            # Listed first: after the worker's death its children become ours, and are not found below it.
            below = process.descendants(pid)
            process.kill([pid, *(set(below) - process.trackers(below))])

    def _stop(self, grace_s: float) -> None:
        """Send TERM to all workers, and to the children of those without a handler; KILL after the grace time."""
        if self._finishing:
            return
        if grace_s > 0:
            process.signal_descendants(signal.SIGTERM)
        else:
            self._kill_left()
        # Repeated after a kill, too: a process may fork while /proc is listed.
        self._kill_at = time.monotonic() + (grace_s or KILL_AGAIN_S)

    def _kill_left(self) -> None:
        """Kill the leftover processes of exited workers; or all processes, if the workers must end, too.

        Python's resource trackers exit by themselves after removing their resources, or are killed at a deadline.
        """
        now, is_going_on = time.monotonic(), self._config.stays and not self._dismissed
        left = set(process.descendants(but=self._workers if is_going_on else ()))
        if is_going_on:
            left -= process.stagers(left)
        trackers = process.trackers(left)
        is_late = self._spare_until is not None and now >= self._spare_until
        process.kill(left if is_late else left - trackers)
        if is_late or not trackers:
            self._spare_until = None  # for later ones
        elif self._spare_until is None:
            self._spare_until = now + process.TRACKERS_S

    def _depart(self) -> None:
        """Let workers leave after a whole step: a scheduler wants the host, and kills late ones itself."""
        self._dismissed = True
        process.signal_descendants(signal.SIGTERM)

    def _give_up(self, error: ControlError) -> None:
        """Kill everything because no controller answers, and print why if a process may read it."""
        if self._launcher_lives or self._config.lent is not None:
            with contextlib.suppress(OSError):  # stderr is closed: the launcher has just exited
                os.write(2, printed(f"farandole: the agent on {self._config.host} ends: {error}\n"))
        self._orphaned()

    def _orphaned(self) -> None:
        """Kill everything at once: launcher or controller is lost."""
        self._dismissed = True
        if self._output is not None:
            self._output.cut()  # first: a pump that waits for receipts would never end
        if self._link is not None:
            self._link.close(deliver=False)
            self._link = None
        self._give_up_at = time.monotonic() + GIVE_UP_S
        self._stop(0.0)


def main() -> None:
    """Entry of the process."""
    process.die_with_parent(signal.SIGTERM)  # if it died before, our standard input is closed
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit("farandole: the agent got no config: 'farandole run' starts it, not you")
    process.adopt_orphans()
    config = unpack(msgspec.json.Decoder(LaunchedAgentConfig).decode, line)
    config = msgspec.structs.replace(config, host=config.host or os.environ[SLURM_HOST])
    try:
        serve(config, dial(config))
    except ControlError as error:
        sys.exit(f"farandole: the agent on {config.host} cannot join the job: {error}")


def serve(
    config: LaunchedAgentConfig,
    address: str,
    policy: Callable[[LaunchedAgentConfig, str, int], LaunchedWorkers] = LaunchedWorkers,
) -> None:
    """Start the workers and serve until all have exited and all output is written."""
    with process.signals_as_bytes(SIGNALS) as signals:
        workers = policy(config, address, signals)
        if config.start is not None:
            workers.begin(config.start, JobOutput.own())  # before connecting: they load longer than we
        try:
            link = connected(config, address)
            workers.join(link)
            Agent(link, workers).serve()
        finally:
            # The workers die with this process, but not their children. Some may be left although all were killed:
            # forked while /proc was listed, and ``GIVE_UP_S`` may be over before the next check.
            process.end_descendants(LAST_KILL_S)
    workers.disconnect()


def _threads(spec: WorkerSpec) -> dict[str, str]:
    """Limit threads to the worker's share of the cores: otherwise numeric libraries of each worker use all cores."""
    neighbours = int(spec.environment.get(OWN.local_size, "1"))
    cores = len(os.sched_getaffinity(0))
    return {"OMP_NUM_THREADS": str(max(1, cores // neighbours))} if neighbours > 1 else {}


def dial(config: LaunchedAgentConfig) -> str:
    """Find the first of the controller's addresses that answers; a Unix socket on this host is used untested."""
    if config.addresses[0].startswith("ipc://"):
        return config.addresses[0]
    lifeline = 0 if config.lent is None else None
    return first_answering(config.addresses, JobKeys.from_secret(config.secret), config.dial_s, lifeline)


if __name__ == "__main__":
    main()
