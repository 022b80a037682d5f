"""Tracebacks as a worker prints them: the frames of the script, and one line for Farandole's frames.

    sys.excepthook = print_uncaught
    sys.stderr.write(folded(error))

Exceptions keep all their frames; ``--log-level debug`` prints them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import TracebackType
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
