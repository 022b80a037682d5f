"""Recorder of the files of Farandole in which a process calls functions: Python runs this when it starts.

The folder ``WALK_FOLDER`` gets a file for each process: its command (unless it was forked), and the files in the order
of the calls, from when ``begin`` is there, or for the main thread of a process ``begin-PID``. It is all written at
once, as some end by a signal.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType

MARK = "/src/farandole/"
MOST = 20_000  # lines for each process
FUNCTION = 1  # a flag of its code that the body of a class or module lacks


def record(folder: str) -> None:
    """Record from now on, in all threads and in processes that are forked."""
    last, left = "", MOST
    begin, own = os.path.join(folder, "begin"), os.path.join(folder, f"begin-{os.getpid()}")

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal last, left
        name = frame.f_code.co_filename
        if event != "call" or name == last or not left or MARK not in name or not frame.f_code.co_flags & FUNCTION:
            return
        is_main = threading.current_thread() is threading.main_thread()
        if os.path.exists(begin) or (is_main and os.path.exists(own)):
            last, left = name, left - 1
            write(name.partition(MARK)[2])

    def write(line: str) -> None:
        with open(os.path.join(folder, f"calls-{os.getpid()}"), "a") as file:
            file.write(line + "\n")

    write("command: " + " ".join(sys.orig_argv).replace("\n", " "))
    threading.setprofile(note)
    sys.setprofile(note)


if "WALK_FOLDER" in os.environ:
    record(os.environ["WALK_FOLDER"])
