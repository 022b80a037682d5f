"""Asking a process where it is must never cost it its life."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

THREADED = """
import threading
from farandole.runtime.session.tracebacks import stack_dump

def descend(depth):
    return depth and descend(depth - 1)

def work_elsewhere():
    while True:
        for depth in (3, 60, 5, 200):
            descend(depth)

def work():
    for _ in range(2):
        threading.Thread(target=work_elsewhere, daemon=True).start()
    print(*stack_dump(), flush=True)
    while True:
        descend(20)

work()
"""
CALLED_BY_C = """
from farandole.runtime.session.tracebacks import stack_dump

class Session:
    @property
    def broken(self):
        return False

def work():
    session = Session()
    print(*stack_dump(), flush=True)
    while not session.broken:
        pass

work()
"""
EXITING = """
import os
from farandole.runtime.session.tracebacks import stack_dump

class Last:
    def __del__(self, write=os.write, read=os.read):  # runs after Python has removed its handlers of signals
        write(1, b"exiting\\n")
        read(0, 1)

last = Last()
print(*stack_dump(), flush=True)
"""
TIMES, DEADLINE_S = 1500, 60.0


@pytest.mark.parametrize("script", [THREADED, CALLED_BY_C], ids=["busy threads", "calls out of C code"])
def test_a_busy_process_survives_being_asked_again_and_again(script: str) -> None:
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            fd, number = map(int, child.stdout.readline().split())
            file = Path(f"/proc/{child.pid}/fd/{fd}")
            dumps = [_dump(child, number, file) for _ in range(TIMES)]
        finally:
            child.kill()
    assert all("in work\n" in dump for dump in dumps), "the main thread says where it is"
    assert not any("work_elsewhere" in dump for dump in dumps), "others run on, and cannot be looked at meanwhile"


def test_a_process_that_exits_survives_being_asked() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", EXITING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        _, number = map(int, child.stdout.readline().split())
        assert child.stdout.readline() == "exiting\n"
        os.kill(child.pid, number)
        os.kill(child.pid, number - 1)
        child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 0


def _dump(child: subprocess.Popen[str], number: int, file: Path) -> str:
    """Ask once; returns what the process wrote, down to the module that it runs."""
    os.truncate(file, 0)
    os.kill(child.pid, number)
    deadline = time.monotonic() + DEADLINE_S
    while not (text := file.read_text()).endswith("in <module>\n"):
        assert child.poll() is None, f"it ended with {child.returncode}"
        assert time.monotonic() < deadline, f"it wrote {text!r}"
        os.sched_yield()
    return text
