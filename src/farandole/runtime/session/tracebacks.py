"""Tracebacks as a worker prints them: the frames of the script, and one line for Farandole's frames.

    sys.excepthook = print_uncaught
    sys.stderr.write(folded(error))

Exceptions keep all their frames; ``--log-level debug`` prints them.

Stack of this process's main thread, readable by other processes even while that thread holds the GIL.

fd, number = stack_dump()
process.dump_stack(pid, number, fd)          # in another process
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import itertools
import logging
import os
import signal
import sys
import threading
from functools import cache
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import FrameType, TracebackType
from typing import Any, final

from farandole import events
from farandole.errors import FarandoleError

_PACKAGE = f"{Path(__file__).parents[2]}/"


def install() -> None:
    """Print uncaught errors of this process folded, unless the script or interpreter has its own ``sys.excepthook``."""
    if sys.excepthook is sys.__excepthook__ and not hasattr(sys, "ps1"):
        sys.excepthook = print_uncaught


def print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that ends the script; to be set as ``sys.excepthook``."""
    if sys.stderr is None:  # closed: Python prints nothing either
        return
    if isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write(folded(error))
    sys.stderr.flush()


def folded(error: BaseException) -> str:
    """Text of the traceback of ``error`` and of its causes.

    Frames of Farandole are folded if it raised an error of its own, or called code that raised. Any other error raised
    in Farandole is a defect, and its report needs the frames.
    """
    text = TracebackException.from_exception(error)
    if not events.logger.isEnabledFor(logging.DEBUG):
        _fold(text, error)
    return "".join(text.format())


@final
class _FoldedStack(StackSummary):
    """Stack in which consecutive frames of Farandole are printed as one line."""

    def format(self, **options: Any) -> list[str]:
        """See ``StackSummary``; newer versions of Python have options, for colours."""
        lines: list[str] = []
        for is_ours, run in itertools.groupby(self, _is_ours):
            frames = list(run)
            if is_ours:
                plural = "s" if len(frames) > 1 else ""
                lines.append(f"  ... {len(frames)} frame{plural} in farandole (all: FARANDOLE_LOG_LEVEL=debug)\n")
            else:
                lines += StackSummary.from_list(frames).format(**options)
        return lines


def _fold(text: TracebackException, error: BaseException) -> None:
    """Fold the stacks of ``error``, of its cause and context, and of the members of an exception group."""
    is_ours = [_is_ours(frame) for frame in text.stack]
    if is_ours and not all(is_ours) and (not is_ours[-1] or isinstance(error, FarandoleError)):
        text.stack = _FoldedStack(text.stack)
    inner = [(text.__cause__, error.__cause__), (text.__context__, error.__context__)]
    # Exception groups (Python 3.11); zip() stops where a long group was truncated.
    inner += zip(getattr(text, "exceptions", None) or (), getattr(error, "exceptions", ()), strict=False)
    for one, other in inner:
        if one is not None and other is not None:
            with contextlib.suppress(RecursionError):  # a chain of a thousand errors
                _fold(one, other)


def _is_ours(frame: FrameSummary) -> bool:
    return frame.filename.startswith(_PACKAGE)


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
