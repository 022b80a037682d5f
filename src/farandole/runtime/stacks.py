"""Lets others read this process's Python stacks, even while it holds the interpreter's lock.

fd, number = stack_dump()
os.kill(pid, number)          # from outside; then read /proc/<pid>/fd/<fd>
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
from functools import cache


@cache
def stack_dump() -> tuple[int, int]:
    """The descriptor that all threads' stacks are appended to when the signal comes. Registered once per process."""
    fd = os.memfd_create("farandole-stacks", os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)  # the reader may empty it
    free = (n for n in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1) if signal.getsignal(n) is signal.SIG_DFL)
    number = next(free)
    faulthandler.register(number, fd, all_threads=True)
    return fd, number
