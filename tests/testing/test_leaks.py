"""What counts as left behind, and what other jobs of the machine have."""

from __future__ import annotations

import subprocess
import sys
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


@pytest.fixture
def memory() -> Iterator[Path]:
    path = Path("/dev/shm", f"psm_{uuid.uuid4().hex}")
    yield path
    path.unlink(missing_ok=True)


def test_shared_memory_is_left_behind(memory: Path) -> None:
    with pytest.raises(AssertionError, match=f"shared_memory: {memory.name}"), no_leaks(settle_s=0.0):
        memory.write_bytes(b"\0")


def test_shared_memory_of_other_jobs_is_not(memory: Path) -> None:
    # By a shell that ends at once: what it leaves running is no child of ours.
    shell = ["sh", "-c", 'exec 3<&0; "$@" <&3 &', "sh", sys.executable, "-c", MAPS, str(memory)]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        with no_leaks(settle_s=0.0):
            assert job.stdout.readline() == "mapped\n"
        assert memory.exists()
        job.stdin.close()
        assert job.stdout.read() == "", "until it has ended"
    assert not memory.exists()
