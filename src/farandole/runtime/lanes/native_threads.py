"""Native threads that begin collectives: those of a library in C++, of which Python knows nothing while they compute.

    expect_native_threads()          # from now on one may come at any time: programs were compiled that will call us
    started = StartedThreads()
    started.note()                   # the calling thread begins a collective: does Python know it?

Who asks if all threads of this process wait can see none of these, so the answer is no for good once there may be one.
Those of ``torch.autograd`` are no such threads: they run only while a thread of Python is in ``backward()``.

Threads. Any thread begins collectives, a signal handler too; so there is no lock. What is known of a thread lies with
the thread: its number may be that of another one as soon as it has ended. The rest is one value that is set once.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import final

_AUTOGRAD = "pt_autograd"


@final
class _Expectation:
    """Flag that is set once and for ever: of the process, as a library outlives every session."""

    is_set = False


_expectation = _Expectation()


def expect_native_threads() -> None:
    """Note that threads which Python did not start may begin collectives in this process."""
    _expectation.is_set = True


def are_native_threads_expected() -> bool:
    """True if such threads have begun collectives, or have run Python code by which it knows them, or will."""
    return _expectation.is_set or any(isinstance(each, threading._DummyThread) and _may_come(each) for each in _all())


@final
class StartedThreads(threading.local):
    """Threads that have begun collectives, and that Python has started."""

    is_known = False
    """Of the calling thread."""

    def note(self) -> None:
        """Note that the calling thread begins a collective: one look at itself, but for its first one."""
        if self.is_known or _expectation.is_set:
            return
        if _is_started(threading.get_ident()) or _name(threading.get_native_id()).startswith(_AUTOGRAD):
            self.is_known = True
        else:
            expect_native_threads()


def _all() -> list[threading.Thread]:
    return threading.enumerate()


def _is_started(ident: int) -> bool:
    return any(each.ident == ident and not isinstance(each, threading._DummyThread) for each in _all())


def _may_come(thread: threading.Thread) -> bool:
    """True if a thread that Python did not start lives, and may call whatever it likes."""
    name = _name(thread.native_id or 0)
    return bool(name) and not name.startswith(_AUTOGRAD)


def _name(native_id: int) -> str:
    """Name of a thread as the kernel has it; "" if there is none."""
    try:
        return Path(f"/proc/self/task/{native_id}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
