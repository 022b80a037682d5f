"""Processes of another user on this machine: ``with other_user(SQUAT, name.hex()) as squatter: ...``.

A program gets its arguments, and is ready after its code; then it idles, or repeats ``turn``, until the block ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from workbench.cluster import UnavailableError

NOBODY = 65534

SQUAT = """
held = [socket.socket(socket.AF_UNIX) for _ in words]
for each, name in zip(held, words):
    each.bind(bytes.fromhex(name))
    each.listen(100)
"""
"""Binds names of the abstract namespace."""

CALL = """
held = [socket.socket(socket.AF_UNIX) for _ in range(int(words[1]))]
for each in held:
    each.setblocking(False)
    each.connect(bytes.fromhex(words[0]))
"""
"""Connects to one such name many times, and sends nothing."""

NEIGHBOUR = """
held = {}

def bind(name):
    if name not in held:
        mine = socket.socket(socket.AF_UNIX)
        try:
            mine.bind(b"\\0" + name)
            mine.listen(100)
            held[name] = [mine]
        except OSError:
            mine.close()

def turn():
    with open("/proc/net/unix", "rb") as file:
        seen = {line.split()[-1][1:] for line in file if b" @farandole-" in line}
    pids = [each.encode() for each in os.listdir("/proc") if each.isdecimal()]
    for name in seen - held.keys():
        calls = [socket.socket(socket.AF_UNIX) for _ in range(30)]
        for each in calls:
            each.setblocking(False)
            each.connect_ex(b"\\0" + name)
        held[name] = calls
        stem, _, number = name.rpartition(b"-")
        for pid in pids if number.isdigit() else ():
            bind(stem + b"-" + pid)
    for name in [name for name in held if name not in seen]:
        for each in held.pop(name):
            each.close()
        bind(name)
"""
"""Connects to each name of Farandole, and binds it when it is free, also with other process numbers in it."""

_PROGRAM = f"""
import os, select, socket, sys
words = sys.argv[1:]
turn = lambda: None
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
exec(words.pop(0))
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.02)[0]:
    turn()
"""


def is_possible() -> bool:
    """True for root, which can start them."""
    return os.geteuid() == 0


@contextlib.contextmanager
def other_user(program: str, *words: str) -> Iterator[None]:
    """Run a program as nobody, from its readiness to the end of the block."""
    if not is_possible():
        raise UnavailableError(f"only root can make a process of another user, and this is user {os.geteuid()}")
    command = [sys.executable, "-c", _PROGRAM, program, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield
            assert process.poll() is None, "the other user's program has failed"
        finally:
            process.stdin.close()
