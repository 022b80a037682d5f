"""The agent: one small process per host that starts, watches and ends workers and passes their output on.

The launcher starts it with its charge, one line of JSON, on standard input. What follows there is printed on standard
error, between the workers' lines; the end of it means that the launcher is gone, and then the workers are killed. When
the agent itself is killed, the kernel kills the workers. No framework is imported here.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import final

import msgspec

from farandole.control import process
from farandole.control.agent_messages import Exited, Goodbye, Started, StopWorkers, WorkerSpec
from farandole.control.channel import LONGEST_WAIT_S
from farandole.control.keys import JobKeys
from farandole.control.message import Message
from farandole.errors import ControlError
from farandole.launch.charge import Charge
from farandole.launch.streams import Streams
from farandole.runtime.agent_link import AgentLink

SETTLE_S = 0.2
"""How long the news of a worker's death may wait for its last words to be read."""

KILL_AGAIN_S = 0.2
GIVE_UP_S = 1.0
"""How long an agent that was told to end at once, or has no launcher, tries to write what is left of the output."""


@final
class Agent:
    """A single-threaded loop over the controller's messages, signals and standard input; output has its own thread."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self._streams = Streams(charge.start)
        self._writing = set(self._streams.ended)
        self._workers: dict[int, int] = {}
        self._unstarted: list[Exited] = []
        self._link: AgentLink | None = None
        self._poll = select.poll()
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._finishing = False
        self._heard = b""
        self._launcher_lives = True
        self._signals = -1

    def run(self) -> None:
        """Start the workers and serve until all have ended and all they wrote is written."""
        with process.signals_as_bytes((signal.SIGCHLD, signal.SIGTERM)) as self._signals:
            for spec in self._charge.start.workers:
                self._start(spec)
            self._streams.start()
            for fd in (0, self._signals, *self._writing):
                self._poll.register(fd, select.POLLIN)
            self._connect()
            self._reap()
            self._serve()
        self._post(Goodbye())
        if self._link is not None:
            self._link.close()

    def _start(self, spec: WorkerSpec) -> None:
        try:
            with self._streams.open(spec.place) as (stdout, stderr):
                pid = process.spawn(
                    spec.command,
                    death_signal=signal.SIGKILL,
                    stdout=stdout,
                    stderr=stderr,
                    environment={**os.environ, **spec.environment},
                    cwd=self._charge.start.cwd,
                )
        except OSError as error:
            code, words = process.refusal(spec.command, error)
            self._unstarted.append(Exited(spec.place, -1, code, "", words))
        else:
            self._workers[pid] = spec.place

    def _connect(self) -> None:
        """Join the control plane, after the workers were started: they have more to load than we."""
        keys = JobKeys.from_secret(self._charge.secret)
        self._link = AgentLink(self._charge.address, keys, self._charge.host, silence_s=0.0)
        for fd in self._link.fds:
            self._poll.register(fd, select.POLLIN)
        for pid, place in self._workers.items():
            self._post(Started(place, pid))
        for ended in self._unstarted:
            self._post(ended)

    def _serve(self) -> None:
        while True:
            ready = {fd for fd, _ in self._poll.poll(self._patience_ms())}
            if self._signals in ready:
                self._on_signals()
            if 0 in ready:
                self._hear()
            self._receive()
            now = time.monotonic()
            for fd in self._writing & ready:
                self._poll.unregister(fd)
                self._writing.discard(fd)
            if not self._writing or (self._give_up_at is not None and now >= self._give_up_at):
                return
            if self._kill_at is not None and now >= self._kill_at:
                self._stop(0.0)

    def _patience_ms(self) -> float | None:
        deadlines = [t for t in (self._kill_at, self._give_up_at) if t is not None]
        return max(0.0, min(min(deadlines) - time.monotonic(), LONGEST_WAIT_S)) * 1000 if deadlines else None

    def _on_signals(self) -> None:
        if signal.SIGTERM in os.read(self._signals, 4096):
            self._orphaned()
        self._reap()

    def _hear(self) -> None:
        """Print what the launcher says; the end of it is the end of the launcher."""
        text = b"" if self._finishing else os.read(0, 2**16)
        lines, newline, rest = (self._heard + text).rpartition(b"\n")
        self._heard = rest
        if newline:
            self._streams.say(lines)
        if not text:
            self._launcher_lives = False
            self._poll.unregister(0)
            self._orphaned()

    def _receive(self) -> None:
        try:
            for message in self._link.receive() if self._link is not None else ():
                if isinstance(message, StopWorkers):
                    self._stop(message.grace_s)
                    if not message.grace_s:  # now means now, also if nobody takes the output
                        self._give_up_at = time.monotonic() + GIVE_UP_S
        except ControlError as error:
            self._streams.say(f"farandole: the agent on {self._charge.host} ends: {error}".encode())
            self._orphaned()

    def _post(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)

    def _reap(self) -> None:
        for pid, code in process.reap():
            if pid in self._workers:
                place = self._workers.pop(pid)
                self._post(Exited(place, pid, code, self._last_words(place, code)))
        if self._workers or self._finishing:
            return
        if not process.has_children():
            self._finishing, self._kill_at = True, None
            if self._launcher_lives:
                self._poll.modify(0, 0)  # what the launcher says from now on it prints itself; only its end is news
            self._streams.finish()
        elif self._kill_at is None:
            self._stop(self._charge.start.grace_s)

    def _last_words(self, place: int, code: int) -> str:
        """The end of its standard error, if it may be the cause of what follows."""
        return self._streams.tail(place, SETTLE_S) if code and self._kill_at is None else ""

    def _stop(self, grace_s: float) -> None:
        """TERM for all workers and what they started; KILL when the grace is over, and again until none is left."""
        if self._finishing:
            return
        process.signal_descendants(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
        self._kill_at = time.monotonic() + (grace_s or KILL_AGAIN_S)

    def _orphaned(self) -> None:
        """Nobody is left to work for."""
        if self._link is not None:
            for fd in self._link.fds:
                self._poll.unregister(fd)
            self._link.close(deliver=False)
            self._link = None
        self._give_up_at = time.monotonic() + GIVE_UP_S
        self._stop(0.0)


def main() -> None:
    """Entry of the process."""
    process.die_with_parent(signal.SIGTERM)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit("farandole: the agent got no charge: 'farandole run' starts it, not you")
    process.adopt_orphans()
    Agent(msgspec.json.decode(line, type=Charge)).run()


if __name__ == "__main__":
    main()
