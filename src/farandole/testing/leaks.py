"""Resources that a piece of code leaves behind: threads, descriptors, children, shared memory.

>>> with no_leaks():
...     open("/proc/self/stat").close()
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from farandole.control import process

OURS = ("farandole", "torch_", "psm_", "sem.mp-")
"""Prefixes of the shared memory that Farandole, PyTorch or Python may leave; other programs have other names."""


@final
@dataclass(frozen=True, slots=True)
class ResourceSnapshot:
    """Threads, descriptors, children and shared memory at one moment, named as ``/proc`` shows them."""

    threads: frozenset[str]
    descriptors: frozenset[str]
    children: frozenset[str]
    shared_memory: frozenset[str]

    @classmethod
    def of_this_process(cls) -> ResourceSnapshot:
        """Take a snapshot of this process now."""
        return cls(
            frozenset(os.listdir("/proc/self/task")),
            frozenset(_descriptors()),
            frozenset(_children()),
            frozenset(name for name in os.listdir("/dev/shm") if name.startswith(OURS)),  # noqa: S108 (only looked at)
        )

    def since(self, before: ResourceSnapshot) -> list[str]:
        """List resources that exist now and not ``before``, one line each."""
        return [
            f"{what}: {name}"
            for what in ("threads", "descriptors", "children", "shared_memory")
            for name in sorted(getattr(self, what) - getattr(before, what))
        ]


@contextmanager
def no_leaks(settle_s: float = 10.0, allowed: Callable[[str], bool] = lambda _: False) -> Iterator[None]:
    """Raise ``AssertionError`` if the body leaves resources; ended threads have ``settle_s`` to disappear.

    ``allowed`` is called with each line (``"descriptors: 7 -> socket:[123]"``) and returns true for allowed ones.
    Shared memory that is mapped by a process not started in the body does not count.
    """
    before = ResourceSnapshot.of_this_process()
    yield  # not in a ``try``: an exception of the body says more than its leaks
    deadline = time.monotonic() + settle_s
    while left := [x for x in ResourceSnapshot.of_this_process().since(before) if not allowed(x) and not _of_others(x)]:
        if time.monotonic() > deadline:
            raise AssertionError("left behind:\n" + "\n".join(left))
        time.sleep(0.01)  # the kernel removes an ended thread a moment after join() returns


def _of_others(line: str) -> bool:
    """True for shared memory of other jobs: a process maps it that is no descendant of this process."""
    what, _, name = line.partition(": ")
    if what != "shared_memory":
        return False
    try:
        inode = os.stat(f"/dev/shm/{name}").st_ino  # noqa: S108 (only looked at)
    except OSError:  # it was removed meanwhile
        return True
    own = {os.getpid(), *process.descendants()}
    others = [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and int(pid) not in own]
    return any(inode in _mapped(pid) for pid in others)


def _mapped(pid: int) -> set[int]:
    """Inodes of shared memory that a process maps. The C library names a semaphore only after it has mapped it."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            return {int(line.split(None, 5)[4]) for line in file if "/dev/shm/" in line}  # noqa: S108 (as above)
    except OSError:  # it has ended meanwhile
        return set()


def _descriptors() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        if target != f"/proc/{os.getpid()}/fd":
            yield f"{name} -> {target}"


def _children() -> Iterator[str]:
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                yield from file.read().split()
        except FileNotFoundError:
            continue  # the thread ended meanwhile
