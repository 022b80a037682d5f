"""Waits of threads for other threads of this process, recorded for ``thread_waits``.

    join(thread)            # thread.join(), recorded: this thread begins no collective before the other one has ended
    joined()                # the thread that each thread waits for

Threads. Any thread joins, a signal handler too, on top of another join: it restores the outer join's entry. There is no
lock: single operations on a ``dict`` are atomic, and each key belongs to one thread.
"""

from __future__ import annotations

import threading

_joined: dict[int, threading.Thread] = {}


def join(thread: threading.Thread) -> None:
    """Wait until ``thread`` has ended; returns at once in that thread itself."""
    me = threading.get_ident()
    if thread.ident == me:
        return
    before = _joined.get(me)
    _joined[me] = thread
    try:
        thread.join()
    finally:
        if before is None:
            _joined.pop(me, None)
        else:
            _joined[me] = before


def joined() -> dict[int, threading.Thread]:
    """Return the thread that each thread waits for, by the identifier of the waiting thread."""
    return _joined.copy()
