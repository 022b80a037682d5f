"""Native threads that begin collectives: threads of a C++ library, which Python does not see while they compute.

    expect_native_threads()          # from now on one may call at any time: compiled programs contain our collectives
    started = StartedThreads()
    started.note()                   # the calling thread begins a collective: does Python know it?

The check whether all threads of this process wait cannot see native threads, so its answer is always no once they may
exist. Threads of ``torch.autograd`` do not count: they run only while a Python thread is in ``backward()``.

Threads. Any thread begins collectives, a signal handler too; so there is no lock. State about a thread is thread-local,
because its identifier may be reused as soon as it has ended. The rest is one value that is set once.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import final

_AUTOGRAD = "pt_autograd"


@final
class _Expectation:
    """Flag of the process that is set once and for good, because a library outlives every session."""

    is_set = False


_expectation = _Expectation()


def expect_native_threads() -> None:
    """Record that threads which Python did not start may begin collectives in this process."""
    _expectation.is_set = True


def are_native_threads_expected() -> bool:
    """True if native threads have begun collectives, may do so, or have run Python code and are still alive."""
    return _expectation.is_set or any(isinstance(each, threading._DummyThread) and _may_come(each) for each in _all())


@final
class StartedThreads(threading.local):
    """Thread-local record whether Python started the threads that begin collectives."""

    is_known = False
    """True if Python (or autograd) started the calling thread."""

    def note(self) -> None:
        """Record that the calling thread begins a collective; after its first one this costs one attribute look-up."""
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
    """True if a thread that Python did not start is alive, and not one of autograd."""
    name = _name(thread.native_id or 0)
    return bool(name) and not name.startswith(_AUTOGRAD)


def _name(native_id: int) -> str:
    """Name of a thread in the kernel; "" if the thread does not exist."""
    try:
        return Path(f"/proc/self/task/{native_id}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
