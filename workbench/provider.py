"""Contract of ``Provider``, as one suite for any implementation.

    class MineUnderTest(ProviderUnderTest):
        def provider(self, folder):
            return MyProvider(folder)

    assert not any(run_contract(MineUnderTest()).values())

A case is a function of a ``ProviderBench``, which plays the fleet. Each gets a provider of its own, with two slots.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

from farandole.cluster.contact import Contact
from farandole.control.addresses import own_host_only
from farandole.control.agent_messages import AGENT, Started, WorkerSpec
from farandole.control.channel import Router
from farandole.control.exits import HostLost, WorkerExited
from farandole.control.keys import JobKeys, new_secret
from farandole.control.search_messages import PoolHello, PoolRetire
from farandole.launch.providers.provider import HostLeaving, HostOffered, Provider, ProviderEvent, words_of
from farandole.testing.leaks import ResourceSnapshot

LONGEST_S = 60.0
"""Time for an event."""

WORKER = """
import os, signal, sys
pipe = os.open(sys.argv[1], os.O_WRONLY)
child = os.fork()
def end(*_):
    os.kill(child, signal.SIGKILL)
    os._exit(7)
if child:
    signal.signal(signal.SIGTERM, end)
    os.write(pipe, b"begun")
while True:
    signal.pause()
"""
"""Process with a child, both of which hold a pipe open. SIGTERM ends it with code 7."""


class ProviderUnderTest(ABC):
    """Provider, for the contract: by default one whose processes run the commands of their orders, on this host."""

    runs_commands = True
    """False if its processes are pool workers, whatever the command: they connect, and end when they are retired."""

    def __init__(self) -> None:
        self._pipes: dict[int, int] = {}

    @abstractmethod
    def provider(self, folder: Path) -> Provider:
        """Make a provider of two slots; ``folder`` is empty, and is removed after the case."""

    def opened(self) -> None:  # noqa: B027 (most providers offer hosts by themselves)
        """Do what lets the provider offer hosts, after it was opened."""

    def leave(self) -> bool:
        """Make a host leave; false if hosts of this provider never do."""
        return False

    def closed(self) -> None:
        """Clean up after a provider was closed."""
        for pipe in self._pipes.values():
            os.close(pipe)
        self._pipes.clear()

    def worker(self, folder: Path, worker_id: int) -> WorkerSpec:
        """Process that runs until it is told to end."""
        if not self.runs_commands:
            return WorkerSpec(worker_id, [], {})
        path = folder / f"{worker_id}.pipe"
        os.mkfifo(path)
        self._pipes[worker_id] = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        return WorkerSpec(worker_id, [sys.executable, "-S", "-c", WORKER, str(path)], {"CONTRACT": "kept"})

    def has_begun(self, bench: ProviderBench, worker_id: int) -> bool:
        """True once the process runs its program."""
        if not self.runs_commands:
            return worker_id in bench.identities
        return bool(select.select([self._pipes[worker_id]], [], [], 0)[0])

    def has_gone(self, worker_id: int) -> bool:
        """True once the process and its children are gone."""
        if not self.runs_commands:
            return True
        with contextlib.suppress(BlockingIOError):
            while text := os.read(self._pipes[worker_id], 64):
                assert text == b"begun"
            return True
        return False

    def finish(self, bench: ProviderBench, worker_id: int) -> None:
        """Let the process exit by itself."""
        if self.runs_commands:
            os.kill(bench.pids[worker_id], signal.SIGTERM)
        else:
            bench.router.send(bench.identities[worker_id], PoolRetire())


@final
class ProviderBench:
    """One provider under test, and all that it has told. Raises ``AssertionError`` for wrong events."""

    def __init__(self, under_test: ProviderUnderTest, provider: Provider, router: Router, folder: Path) -> None:
        self.under_test, self.provider, self.router, self.folder = under_test, provider, router, folder
        self.told: list[ProviderEvent] = []
        self.slots: dict[str, int] = {}
        self.pids: dict[int, int] = {}
        self.exits: dict[int, WorkerExited] = {}
        self.identities: dict[int, bytes] = {}

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Handle events until a condition holds."""
        until_s = time.monotonic() + LONGEST_S
        while not condition():
            assert time.monotonic() < until_s, f"waited in vain until {what}; told: {self.told}"
            self._turn(until_s)

    def started(self, *worker_ids: int) -> None:
        """Start processes, as far as there are slots, and wait until they run."""
        self.until(lambda: sum(self.slots.values()) == 2, "two slots are offered")
        places = [host for host, slots in self.slots.items() for _ in range(slots)]
        for host in dict.fromkeys(places):
            mine = [each for each, place in zip(worker_ids, places, strict=False) if place == host]
            self.provider.start(host, [self.under_test.worker(self.folder, each) for each in mine])
        self.until(lambda: self.exits or self.pids.keys() >= set(worker_ids), f"{worker_ids} have started")
        assert not self.exits
        self.until(lambda: all(self.under_test.has_begun(self, each) for each in worker_ids), "they have begun")

    @property
    def host(self) -> str:
        """A host that was offered."""
        return next(iter(self.slots))

    def quiet(self) -> None:
        """Check that nothing is told any more, and that nobody would wake up for nothing."""
        self.until(lambda: not self._turn(time.monotonic()), "there is no event")
        assert self.provider.deadline_s > time.monotonic() - 1.0, "the provider is always due"
        ready = select.select(list(self.provider.fds), [], [], 0)[0]
        assert not self._handled(ready) or not select.select(list(self.provider.fds), [], [], 0)[0]

    def _turn(self, until_s: float) -> bool:
        """Wait for something, and handle it; false if there was no event."""
        fds = list(self.provider.fds)
        for fd in fds:
            self.router.watch(fd)
        # A pipe of a worker, which the router does not watch, is looked at ten times a second.
        due_s = min(until_s, self.provider.deadline_s, time.monotonic() + 0.1)
        ready = self.router.wait(max(0.0, due_s - time.monotonic()))
        for fd in fds:
            self.router.unwatch(fd)
        return self._handled(ready)

    def _handled(self, ready: Any) -> bool:
        messages = list(iter(self.router.recv, None))
        hellos = [(identity, hello) for identity, hello in messages if isinstance(hello, PoolHello)]
        mail = [each for each in messages if each[0].startswith(AGENT)]
        found = self.provider.events(time.monotonic(), ready, [*hellos, *mail])
        self.identities.update({hello.worker_id: identity for identity, hello in hellos})
        for event in found:
            self._note(event)
        self.told += found
        return bool(found)

    def _note(self, event: ProviderEvent) -> None:
        if isinstance(event, HostOffered):
            self.slots[event.host] = event.slots
        elif isinstance(event, HostLost):
            assert self.slots.pop(event.host, None) is not None, f"{event} of a host that is not there"
            assert event.reason
        elif isinstance(event, Started):
            assert event.worker_id not in self.pids, f"a second {event}"
            assert event.worker_id not in self.exits, f"{event} after its exit"
            self.pids[event.worker_id] = event.pid
        elif isinstance(event, WorkerExited):
            assert event.worker_id not in self.exits, f"a second {event}"
            self.exits[event.worker_id] = event


Case: TypeAlias = Callable[[ProviderBench], None]


def run_contract(under_test: ProviderUnderTest, cases: Mapping[str, Case] | None = None) -> dict[str, str]:
    """Run ``cases`` (default: all); the result maps each to its error ("" for none)."""
    return {name: _run(under_test, case) for name, case in (CASES if cases is None else cases).items()}


def _run(under_test: ProviderUnderTest, case: Case) -> str:
    try:
        with _bench(under_test) as bench:
            case(bench)
    except Exception:  # exceptions of the provider are findings, too
        return traceback.format_exc()
    return ""


@contextlib.contextmanager
def _bench(under_test: ProviderUnderTest) -> Iterator[ProviderBench]:
    """Open a provider, and see what it leaves behind."""
    secret = new_secret()
    with (
        tempfile.TemporaryDirectory() as folder,
        Router(JobKeys.from_secret(secret), own_host_only()) as router,
        contextlib.ExitStack() as held,
    ):
        before = ResourceSnapshot.of_this_process()
        held.callback(under_test.closed)
        provider = held.enter_context(under_test.provider(Path(folder)))
        bench = ProviderBench(under_test, provider, router, Path(folder))
        provider.open(Contact([router.address], secret), router.send)
        under_test.opened()
        yield bench
        for _ in range(2):  # it may be closed twice
            provider.close()
        begun = [each for each in bench.pids if each not in bench.exits]
        bench.until(lambda: all(map(under_test.has_gone, begun)), "processes have gone")
        under_test.closed()
        left = [
            each for each in ResourceSnapshot.of_this_process().since(before) if "children" in each or "pidfd" in each
        ]
        assert not left, left


# -- cases ------------------------------------------------------------------------------------------------------------


def slots_are_offered_and_then_it_is_quiet(bench: ProviderBench) -> None:
    """Hosts are offered, with those slots that were known before, and an idle provider wakes nobody."""
    known = dict(bench.provider.slots)
    bench.until(lambda: sum(bench.slots.values()) == 2, "two slots are offered")
    assert known in ({}, bench.slots)
    bench.quiet()
    assert all(isinstance(event, HostOffered) for event in bench.told), bench.told


def ordered_processes_run(bench: ProviderBench) -> None:
    """Each ordered process is told once, by the pid of a process that lives, and has the variables of its order."""
    bench.started(3, 4)
    assert len({bench.pids[3], bench.pids[4]}) == 2
    for pid in bench.pids.values():
        os.kill(pid, 0)
        if bench.under_test.runs_commands:
            assert b"CONTRACT=kept" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    bench.quiet()
    assert not bench.exits


def an_exit_is_told_once_and_frees_the_slot(bench: ProviderBench) -> None:
    """An exit is told with its code and words, the others run on, and another process may start there."""
    bench.started(0, 1)
    bench.under_test.finish(bench, 0)
    bench.until(lambda: 0 in bench.exits, "the exit is told")
    assert words_of(bench.exits[0])
    assert bench.exits[0].code == (7 if bench.under_test.runs_commands else 1)
    bench.until(lambda: bench.under_test.has_gone(0), "its child is gone")
    bench.provider.start(bench.host, [bench.under_test.worker(bench.folder, 2)])
    bench.until(lambda: 2 in bench.pids, "the next has started")
    bench.until(lambda: bench.under_test.has_begun(bench, 2), "the next has begun")
    bench.quiet()
    assert set(bench.exits) == {0}


def a_kill_ends_one_process_with_its_children(bench: ProviderBench) -> None:
    """A killed process and its children are gone, and its exit is told; no other process notices."""
    bench.started(0, 1)
    number = signal.SIGINT if bench.provider.heed_s else signal.SIGKILL
    bench.provider.kill(bench.host, 1, number)
    bench.until(lambda: 1 in bench.exits, "the exit is told")
    assert bench.exits[1].code, "it has not ended in good order"
    bench.until(lambda: bench.under_test.has_gone(1), "its children are gone")
    os.kill(bench.pids[0], 0)
    bench.quiet()
    assert set(bench.exits) == {1}


def a_kill_of_what_does_not_run_is_nothing(bench: ProviderBench) -> None:
    """A process that was never ordered, or has exited, may be killed: that is no error, and no event."""
    bench.started(0)
    bench.provider.kill(bench.host, 99)
    bench.under_test.finish(bench, 0)
    bench.until(lambda: 0 in bench.exits, "the exit is told")
    bench.provider.kill(bench.host, 0)
    bench.quiet()
    assert set(bench.exits) == {0}


def a_process_that_cannot_start_has_exited(bench: ProviderBench) -> None:
    """A command that does not exist is an exit that names it, and no exception; others start."""
    if bench.under_test.runs_commands:
        bench.started(0)
        bench.provider.start(bench.host, [WorkerSpec(1, ["no-such-command"], {})])
        bench.until(lambda: 1 in bench.exits, "the exit is told")
        assert "no-such-command" in bench.provider.explain(bench.exits[1])
        assert set(bench.pids) == {0}


def a_host_that_leaves_is_lost_once_it_is_released(bench: ProviderBench) -> None:
    """A leaving host is told while its processes run; released, twice, it is lost once, with all of them."""
    bench.started(0, 1)
    host = bench.host
    if bench.under_test.leave():
        bench.until(lambda: HostLeaving(host) in bench.told, "the host leaves")
        assert not bench.exits
        for _ in range(2):
            bench.provider.release(host)
        bench.until(lambda: host not in bench.slots, "the host is lost")
        bench.until(lambda: bench.under_test.has_gone(0) and bench.under_test.has_gone(1), "its processes are gone")
        bench.quiet()
        assert sum(isinstance(event, HostLost) for event in bench.told) == 1


def it_closes_with_processes_at_work(bench: ProviderBench) -> None:
    """Processes that run are ended by ``close``, one that was ordered just now, too."""
    bench.started(0)
    bench.provider.start(bench.host, [bench.under_test.worker(bench.folder, 1)])
    assert bench.provider.deadline_s <= math.inf


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        slots_are_offered_and_then_it_is_quiet,
        ordered_processes_run,
        an_exit_is_told_once_and_frees_the_slot,
        a_kill_ends_one_process_with_its_children,
        a_kill_of_what_does_not_run_is_nothing,
        a_process_that_cannot_start_has_exited,
        a_host_that_leaves_is_lost_once_it_is_released,
        it_closes_with_processes_at_work,
    )
}
