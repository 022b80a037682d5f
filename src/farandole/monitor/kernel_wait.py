"""Wait of a notebook's cell, in which the kernel still hears the buttons of a live view.

    serve_while_waiting(widget.comm.comm_id, bridge.take, lambda: job.done)

A kernel of Jupyter takes no message while a cell runs, but in a subshell: those are of ipykernel 7, for front ends that
ask for one, as JupyterLab 4.4 does. Elsewhere a cell that waits can take them itself. What is none of the view's is
kept in order, and handed to the kernel when the wait is over, as if it had come then.
"""

# One thread, the kernel's main thread. A message that was received is in ``held`` or taken, whatever happens: SIGINT,
# which could raise in between, is only noted, and raised when all that was held is handed over. That is done before
# the cell ends, as the kernel then drops the cells behind one that has failed, and has to know them.

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

LOOK_MS = 50
"""Interval of looks whether the wait is over."""

logger = logging.getLogger("farandole.monitor")


def serve_while_waiting(comm: str, take: Callable[[object], None], until: Callable[[], bool]) -> None:
    """Wait until that is true, and give ``take`` the custom messages of a comm; raises ``KeyboardInterrupt``.

    Returns at once outside of the main thread of a kernel, or in one that is not as those of ipykernel 6 and 7.
    """
    kernel = _kernel()
    stream = _incoming(kernel)
    if stream is None:
        return
    held: list[Any] = []

    def heard(frames: Any) -> None:
        content = _custom(kernel.session, frames, comm)
        if content is None:
            held.append(frames)
        else:
            take(content)

    with _interrupts_noted() as interrupts:
        own = stream._recv_callback
        stream.on_recv(heard, copy=False)
        try:
            while not until() and not interrupts:
                stream.socket.poll(LOOK_MS)
                stream.flush()
        finally:
            stream.on_recv(own, copy=False)
            for frames in held:
                stream._run_callback(own, frames)
    if interrupts:
        raise KeyboardInterrupt


def _kernel() -> Any:
    """The kernel whose main thread this is; ``None`` if there is none."""
    if threading.current_thread() is not threading.main_thread() or "IPython" not in sys.modules:
        return None
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None)


def _incoming(kernel: Any) -> Any:
    """Stream by which requests come to the main thread of a kernel; ``None`` where that is not known."""
    thread = getattr(kernel, "shell_channel_thread", None)  # of ipykernel 7, which hands them on
    stream = getattr(kernel, "shell_stream", None)
    if thread is not None:
        stream = getattr(getattr(thread.manager, "_shell_channel_to_main", None), "to_stream", None)
    wanted = ("_recv_callback", "_run_callback", "on_recv", "flush", "socket")
    return stream if all(hasattr(stream, name) for name in wanted) else None


def _custom(session: Any, frames: Any, comm: str) -> Any:
    """Content of a custom message of a widget's comm; ``None`` for all others, which are only looked at."""
    try:
        _, parts = session.feed_identities(frames, copy=False)
        message = session.deserialize(parts, content=False, copy=False)
        if message["header"]["msg_type"] != "comm_msg":
            return None
        data = msgspec.json.decode(bytes(message["content"]), type=dict[str, Any])
        if data.get("comm_id") != comm or data["data"].get("method") != "custom":
            return None
        session.deserialize(parts, content=True, copy=False)  # notes its signature: it counts once
        return data["data"].get("content") or {}
    except Exception:  # it is not signed, no message, or the kernel's own: the kernel says so
        logger.debug("a message that is left to the kernel", exc_info=True)
        return None


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """Note SIGINT instead of raising by it."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
