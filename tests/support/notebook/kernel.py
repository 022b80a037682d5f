"""A kernel of Jupyter with engines of IPython Parallel, for checks: cells, what they print, how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from jupyter_client.manager import KernelManager

from tests.support.patience import PATIENCE_S

DEADLINE_S = 2 * PATIENCE_S
SLOWNESS = float(os.environ.get("NOTEBOOK_SLOWNESS", "10"))
"""Factor of limits in seconds: 1 on a machine that does nothing else."""

VARIABLE = "TEST_NOTEBOOK_OF"

OnText = Callable[[str], object]


@final
@dataclass
class Cell:
    """A cell that has ended: its status, text by stream, the error, and the bytes of its messages."""

    status: str
    stdout: str = ""
    stderr: str = ""
    error: str = ""
    nbytes: int = 0
    seconds: float = 0.0
    ended_s: float = 0.0
    names: list[str] = field(default_factory=list)

    def ok(self) -> Cell:
        """Itself, or a failure that shows what it said."""
        assert self.status == "ok", f"{self.status}\n{self.stdout}\n{self.stderr}\n{self.error}"
        return self

    def fails(self, *texts: str) -> Cell:
        """Itself, if it has failed with all these texts."""
        assert self.status == "error", f"{self.status}\n{self.stdout}\n{self.stderr}"
        for text in texts:
            assert text in self.error, f"{text!r} is not in\n{self.error}\n{self.stderr}"
        return self

    def within(self, seconds: float) -> Cell:
        """Itself, if it did not take longer, on a machine with nothing else to do."""
        assert self.seconds < seconds * SLOWNESS, f"took {self.seconds:.2f} s"
        return self


@final
class Kernel:
    """A kernel in ``folder``; at the end all that began in it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.saved = folder, -1
        self._mark = f"{os.getpid()}.{time.monotonic_ns()}"
        self.manager: Any = KernelManager(kernel_name="python3")
        own = {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        told = {"IPYTHONDIR": str(folder / "ipython"), "IPP_NONINTERACTIVE": "1", VARIABLE: self._mark}
        self.manager.start_kernel(env={**own, **told}, cwd=str(folder))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=DEADLINE_S)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it was about to end
                os.kill(pid, signal.SIGKILL)
        self.manager.cleanup_resources()

    def processes(self) -> list[int]:
        """Living processes that began in this kernel, itself included."""
        return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        try:
            environ, status = Path(f"/proc/{pid}/environ").read_bytes(), Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return False
        return f"{VARIABLE}={self._mark}".encode() in environ.split(b"\0") and b") Z " not in status

    def send(self, code: str) -> str:
        """Send a cell; ``receive`` brings its end."""
        return str(self.client.execute(code))

    def receive(self, sent: str, on_text: OnText = lambda _: None) -> Cell:
        """Wait for the end of a cell; what it prints is given to ``on_text``."""
        begun, cell = time.monotonic(), Cell("")
        while True:
            message = self.client.get_iopub_msg(timeout=DEADLINE_S)
            if message["parent_header"].get("msg_id") != sent:
                continue
            content, kind = message["content"], message["msg_type"]
            cell.nbytes += len(repr(content))
            cell.names.append(kind)
            if kind == "stream":
                setattr(cell, content["name"], getattr(cell, content["name"]) + content["text"])
                on_text(content["text"])
            elif kind == "error":
                cell.error = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                break
        while (reply := self.client.get_shell_msg(timeout=DEADLINE_S))["parent_header"].get("msg_id") != sent:
            pass
        cell.status, cell.ended_s = reply["content"]["status"], time.monotonic()
        cell.seconds = cell.ended_s - begun
        return cell

    def run(self, code: str, on_text: OnText = lambda _: None) -> Cell:
        """Run a cell to its end.

        Again if the kernel has not run it: it drops what it gets in the moment after a cell that has failed, for the
        sake of those that were queued behind that one.
        """
        while (cell := self.receive(self.send(code), on_text)).status == "aborted":
            pass
        return cell

    def interrupt(self) -> None:
        """Interrupt, as the button does."""
        self.manager.interrupt_kernel()
