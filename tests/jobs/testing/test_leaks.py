"""What counts as left behind, and what other jobs of the machine have."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.testing.leaks import no_leaks

MAPS = """
import mmap, os, sys
memory = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(memory, 4096)
mapped = mmap.mmap(memory, 4096)
print("mapped", flush=True)
sys.stdin.read()
os.unlink(sys.argv[1])
"""

SEMAPHORE = """
import multiprocessing, sys
held = multiprocessing.get_context("spawn").Semaphore()
print("named", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory() -> Iterator[Path]:
    path = Path("/dev/shm", f"psm_{uuid.uuid4().hex}")
    yield path
    path.unlink(missing_ok=True)


def test_shared_memory_is_left_behind(memory: Path) -> None:
    with pytest.raises(AssertionError, match=f"shared_memory: {memory.name}"), no_leaks(settle_s=0.0):
        memory.write_bytes(b"\0")


def elsewhere(*words: str) -> list[str]:
    """A Python of a shell that ends at once: what that leaves running is no child of ours."""
    return ["sh", "-c", 'exec 3<&0; "$@" <&3 &', "sh", sys.executable, "-c", *words]


def test_shared_memory_of_other_jobs_is_not(memory: Path) -> None:
    shell = elsewhere(MAPS, str(memory))
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        with no_leaks(settle_s=0.0):
            assert job.stdout.readline() == "mapped\n"
        assert memory.exists()
        job.stdin.close()
        assert job.stdout.read() == "", "until it has ended"
    assert not memory.exists()


def test_semaphores_of_other_jobs_are_not() -> None:
    """Which are mapped under another name than they get."""
    with subprocess.Popen(
        elsewhere(SEMAPHORE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        before = set(os.listdir("/dev/shm"))
        with no_leaks(settle_s=0.0):
            assert job.stdout.readline() == "named\n"
            named = [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("sem.mp-")]
            assert named
        job.stdin.close()
        assert job.stdout.read() == "", "until it has ended"
    deadline_s = time.monotonic() + 10
    while any(Path("/dev/shm", name).exists() for name in named):  # its resource tracker removes them after it
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
