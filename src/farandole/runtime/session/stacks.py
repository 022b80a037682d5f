"""Stack of this process's main thread, readable by other processes even while that thread holds the GIL.

fd, number = stack_dump()
process.dump_stack(pid, number, fd)          # in another process
"""

# Two signals request it. Python handles ``number`` between two instructions of the main thread, where its frames are
# consistent. A main thread that stays in C code for long never gets there, so ``faulthandler`` handles ``number - 1``
# at once: it follows the frames as they are. During a call from C into Python the frame pointers may be invalid for
# some instructions, and the process dies of SIGSEGV: this signal is for threads that do not move (``dump_stack``).
#
# At its end Python removes all handlers, and frameworks may then take seconds to unload. A late request would kill the
# process, and a training that is complete would count as failed: so ``_ignore`` replaces the handlers before that.

from __future__ import annotations

import atexit
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
    """Register the signals, once per process; return the descriptor that receives the stack, and the signal number.

    The kernel delivers the signal to the main thread, which writes its own stack only. The other threads run on
    meanwhile: reading their frames from here could access freed memory, and the process would die of SIGSEGV.
    """
    fd = os.memfd_create("farandole-stacks", os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)  # the reader may truncate it
    numbers = range(signal.SIGRTMAX - 1, signal.SIGRTMIN + 1, -1)
    number = next(n for n in numbers if signal.getsignal(n) is signal.getsignal(n - 1) is signal.SIG_DFL)

    def write(_: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError, RecursionError):  # errors are ignored: a missing stack does no harm
            os.write(fd, _text_of(frame).encode(errors="replace"))

    if threading.current_thread() is threading.main_thread():
        signal.signal(number, write)
        signal.siginterrupt(number, False)
    else:  # only the main thread may set a Python handler
        faulthandler.register(number, fd, all_threads=False)
    faulthandler.register(number - 1, fd, all_threads=False)
    atexit.register(_ignore, number)
    return fd, number


def _ignore(number: int) -> None:
    """Ignore further requests: this process exits."""
    for each in (number, number - 1):
        faulthandler.unregister(each)
        with contextlib.suppress(ValueError):  # the interpreter is not finalized by its main thread
            signal.signal(each, signal.SIG_IGN)


def _text_of(frame: FrameType | None) -> str:
    """The stack in the format of ``faulthandler``."""
    lines = ["Stack (most recent call first):"]
    while frame is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines) + "\n"
