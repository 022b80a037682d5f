"""Stack of this process's main thread, for other processes to read, even while it holds the interpreter's lock.

fd, number = stack_dump()
process.dump_stack(pid, number, fd)          # in another process
"""

# Two signals ask for it. ``number`` is handled by Python between two instructions of the main thread, where its frames
# are whole. A main thread that stays in C code for long never comes there, so ``number - 1`` is handled at once, by
# ``faulthandler``: it follows whatever frames there are. Within a call that C makes into Python these may point
# nowhere for some instructions, and the process ends with SIGSEGV: it is for threads that do not move (``dump_stack``).

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import threading
from functools import cache
from types import FrameType


@cache
def stack_dump() -> tuple[int, int]:
    """The descriptor that the main thread's stack is appended to when the signal comes. Registered once per process.

    The kernel gives the signal to the main thread, which writes its own stack. The others run on meanwhile: who follows
    their frames from there reads memory that they have just given back, and the process ends with SIGSEGV.
    """
    fd = os.memfd_create("farandole-stacks", os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)  # the reader may empty it
    numbers = range(signal.SIGRTMAX - 1, signal.SIGRTMIN + 1, -1)
    number = next(n for n in numbers if signal.getsignal(n) is signal.getsignal(n - 1) is signal.SIG_DFL)

    def write(_: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError, RecursionError):  # the script's own is told where it is; no text is no harm
            os.write(fd, _text_of(frame).encode(errors="replace"))

    if threading.current_thread() is threading.main_thread():
        signal.signal(number, write)
        signal.siginterrupt(number, False)
    else:  # Python lets no other thread set a handler
        faulthandler.register(number, fd, all_threads=False)
    faulthandler.register(number - 1, fd, all_threads=False)
    return fd, number


def _text_of(frame: FrameType | None) -> str:
    """The stack as ``faulthandler`` writes it."""
    lines = ["Stack (most recent call first):"]
    while frame is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines) + "\n"
