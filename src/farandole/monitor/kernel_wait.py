"""Wait of a notebook's cell, in which the kernel still handles the buttons of a live view.

    serve_while_waiting(widget.comm.comm_id, bridge.handle_view_message, lambda: job.done)

A Jupyter kernel handles no message while a cell runs, except in a subshell: ipykernel 7 has subshells, for front ends
that ask for one, such as JupyterLab 4.4. In other kernels a waiting cell can handle messages itself. Messages that are
not for the view are kept in order, and passed to the kernel when the wait is over.
"""

# One thread, the kernel's main thread. A received message is always in ``held`` or handled: SIGINT, which could raise
# in between, is only noted, and raised when all held messages are passed to the kernel. They are passed before the cell
# ends, because the kernel then drops the cells behind a failed cell, and must know them.

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
"""Polling interval of the end of the wait, in ms."""

logger = logging.getLogger("farandole.monitor")


def serve_while_waiting(comm: str, take: Callable[[object], None], until: Callable[[], bool]) -> None:
    """Wait until ``until()`` is true; pass custom messages of a comm to ``take``; raises ``KeyboardInterrupt``.

    Returns at once outside of the main thread of a kernel, or in a kernel that is not like those of ipykernel 6 and 7.
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
    """The kernel whose main thread calls this; ``None`` if there is none."""
    if threading.current_thread() is not threading.main_thread() or "IPython" not in sys.modules:
        return None
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None)


def _incoming(kernel: Any) -> Any:
    """Stream of requests to the main thread of a kernel; ``None`` if it is not known."""
    thread = getattr(kernel, "shell_channel_thread", None)  # of ipykernel 7, which passes them on
    stream = getattr(kernel, "shell_stream", None)
    if thread is not None:
        stream = getattr(getattr(thread.manager, "_shell_channel_to_main", None), "to_stream", None)
    wanted = ("_recv_callback", "_run_callback", "on_recv", "flush", "socket")
    return stream if all(hasattr(stream, name) for name in wanted) else None


def _custom(session: Any, frames: Any, comm: str) -> Any:
    """Content of a custom message of a widget's comm; ``None`` for other messages, which stay unchanged."""
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
    except Exception:  # not signed, no message, or for the kernel: the kernel reports it
        logger.debug("a message that is left to the kernel", exc_info=True)
        return None


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """Note SIGINT instead of raising ``KeyboardInterrupt``."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
