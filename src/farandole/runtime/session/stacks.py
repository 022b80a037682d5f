"""Stack of this process's main thread, for other processes to read, even while it holds the interpreter's lock.

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
    """The descriptor that the main thread's stack is appended to when the signal comes. Registered once per process.

    The kernel gives the signal to the main thread, which writes its own stack. The others run on meanwhile: who follows
    their frames from there reads memory that they have just given back, and the process ends with SIGSEGV.
    """
    fd = os.memfd_create("farandole-stacks", os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)  # the reader may empty it
    free = (n for n in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1) if signal.getsignal(n) is signal.SIG_DFL)
    number = next(free)
    faulthandler.register(number, fd, all_threads=False)
    return fd, number
