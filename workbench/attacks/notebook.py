"""Cells of a real Jupyter kernel: ``farandole.run``, interrupted and run again, and ``init()`` twice in one process.

    play()        # [] if nothing was wrong

Jupyter is no part of what ``make setup`` installs: ``pip install jupyter_client ipykernel`` first.
"""

# Processes: the kernel is a child of this process, and the agent and the workers of ``farandole.run`` are below it. A
# variable that only they have identifies them all. A kernel that restarts is killed, so its workers must exit by
# themselves; scans of ``/proc`` are therefore repeated until they show the expected state.

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any, final

from workbench.cluster import UnavailableError

DEADLINE_S = 120.0
TIMES = 3
VARIABLE = "NOTEBOOK_OF_AN_ATTACK"

TRAIN = """
import farandole

def train(steps):
    import torch
    import farandole.torch as hvd

    hvd.init()
    print("worker is up", flush=True)
    total = 0.0
    while steps:
        total += hvd.allreduce(torch.ones(1), name="x", op=hvd.Sum).item()
        steps -= 1
    return total
"""
RUN = "print('answer', farandole.run(train, args=({},), np=2))"
WITHOUT_END = RUN.format(-1)
ALONE = """
import torch
import farandole.torch as hvd

hvd.init()
print("answer", hvd.rank(), hvd.size(), hvd.allreduce(torch.full((3,), 2.0), op=hvd.Sum).tolist())
"""
ANSWER = "answer 0 1 [2.0, 2.0, 2.0]\n"


@final
class Notebook:
    """A kernel, and the output of its cells. Raises ``UnavailableError`` if Jupyter is missing."""

    def __init__(self) -> None:
        try:
            jupyter = importlib.import_module("jupyter_client")
            importlib.import_module("ipykernel")
        except ImportError as error:
            raise UnavailableError(f"{error}: pip install jupyter_client ipykernel") from error
        self._value = f"{os.getpid()}.{time.monotonic_ns()}"
        self.manager: Any = jupyter.KernelManager(kernel_name="python3")
        # With this variable, set in a test, a kernel does not forward the standard output of its children.
        own = {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        self.manager.start_kernel(env={**own, VARIABLE: self._value})
        self._connect()

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.until(0)

    def cell(self, code: str, on_text: Callable[[str], object] = lambda _: None) -> str:
        """Run a cell and return its output, with the name of an exception that ends it last."""
        printed: list[str] = []

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                printed.append(content["text"])
                on_text(content["text"])
            elif message["msg_type"] == "error":
                printed.append(content["ename"])

        self._client.execute_interactive(code, timeout=DEADLINE_S, output_hook=take)
        return "".join(printed)

    def begin(self, code: str) -> None:
        """Run a cell without waiting for it."""
        self._client.execute(code)

    def restart(self) -> None:
        """Restart the kernel, like the button."""
        self._client.stop_channels()
        self.manager.restart_kernel(now=True)
        self._connect()

    def processes(self) -> list[int]:
        """Living processes that this kernel started, and the kernel itself."""
        return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if self._is_ours(pid)]

    def until(self, least: int, most: int | None = None) -> None:
        """Wait for this number of processes; raises ``TimeoutError`` with the processes found."""
        deadline = time.monotonic() + DEADLINE_S
        while not least <= len(found := self.processes()) <= (least if most is None else most):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the kernel and its workers are the processes {found}, not {least} of them")
            time.sleep(0.01)  # nothing announces what /proc shows

    def _connect(self) -> None:
        self._client = self.manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=DEADLINE_S)

    def _is_ours(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/stat", "rb") as stat:
                is_ours = f"{VARIABLE}={self._value}".encode() in environ.read().split(b"\0")
                return is_ours and b") Z " not in stat.read()
        except OSError:
            return False


Check = Callable[[str, str, str], None]


def play() -> list[str]:
    """Play all attacks; returns the errors."""
    wrong: list[str] = []

    def check(found: str, wanted: str, what: str) -> None:
        if wanted not in found:
            wrong.append(f"{what}: {found!r}, not {wanted!r}")

    for attack in (_interrupt, _restart, _alone):
        with Notebook() as notebook:
            attack(notebook, check)
    return wrong


def _interrupt(notebook: Notebook, check: Check) -> None:
    """Interrupt a job when the first worker is up, and run the next one."""
    notebook.cell(TRAIN)
    check(notebook.cell(RUN.format(3)), "answer [6.0, 6.0]", "a job in a cell")
    for _ in range(TIMES):
        told: list[str] = []

        def interrupt(text: str, told: list[str] = told) -> None:
            if "worker is up" in text and not told:
                told.append(text)
                notebook.manager.interrupt_kernel()

        check(notebook.cell(WITHOUT_END, interrupt)[-17:], "KeyboardInterrupt", "an interrupted job")
        notebook.until(1)
        check(notebook.cell(RUN.format(4)), "answer [8.0, 8.0]", "a job after an interrupted one")
        notebook.until(1)


def _restart(notebook: Notebook, check: Check) -> None:
    """Restart the kernel in the middle of a job."""
    notebook.cell(TRAIN)
    notebook.begin(WITHOUT_END)
    notebook.until(4, most=99)  # the kernel, the agent and two workers
    notebook.restart()
    notebook.until(1)
    check(notebook.cell("print(1 + 1)"), "2\n", "a cell after a restart")


def _alone(notebook: Notebook, check: Check) -> None:
    """Call ``init()`` twice, after ``shutdown()``, and in a kernel that was restarted."""
    check(notebook.cell(ALONE), ANSWER, "init()")
    check(notebook.cell(ALONE), ANSWER, "init() again")
    check(notebook.cell("hvd.shutdown()\nhvd.init()\nprint(hvd.size())"), "1\n", "init() after shutdown()")
    notebook.restart()
    check(notebook.cell(ALONE), ANSWER, "init() after a restart")
    notebook.until(1)
