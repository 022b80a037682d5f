"""Chromium on the live page, once for all tests: Debian's, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import psutil

from farandole.control.monitor_messages import MODULE
from tests.support.patience import PATIENCE_S

CHROMIUM = shutil.which("chromium")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
DEADLINE_S = PATIENCE_S

TRAINING = """
import math, os, time
import numpy as np
import farandole.numpy as hvd
hvd.init()
gradients = hvd.DistributedGradients([np.zeros(3, np.float32)])
for step in range(10**6):
    gradients([np.ones(3, np.float32)])
    if step % 5 == 0:
        hvd.log(loss=2 * math.exp(-step / 400) + 0.1 * hvd.rank(), samples=32 * step)
    if step % 100 == 0:
        print("step", step, "<script>document.title='owned'</script>", flush=True)
    if hvd.checkpoint_due():
        print("saved", flush=True)
    time.sleep(0.002)
"""


@final
class LiveRun:
    """A job with a live page, which goes on until it is stopped; the page stays for ``stay_s``."""

    def __init__(self, folder: Path, options: list[str], script: str = TRAINING, stay_s: float = 0.0) -> None:
        self.folder, self.record = folder, folder / "run"
        (folder / "train.py").write_text(script)
        command = [sys.executable, "-m", "farandole", "run", *options, "--live", "--record", str(self.record)]
        command += ["--live-stay", str(stay_s)]
        with open(folder / "out.txt", "wb") as out:
            self.process = subprocess.Popen(
                [*command, sys.executable, "train.py"], cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        until(lambda: (self.record / "live.link").exists() or self.process.poll() is not None, "for the link")
        assert self.process.poll() is None, self.said
        self.link = (self.record / "live.link").read_text().strip()

    @property
    def said(self) -> str:
        return (self.folder / "out.txt").read_text()

    @property
    def address(self) -> str:
        return self.link.split("#")[0].rstrip("/")

    @property
    def key(self) -> str:
        return self.link.split("#key=")[1]

    def kill_monitor(self) -> None:
        """End the process that serves the page, which is not told."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        [monitor] = [pid for pid in children if MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(monitor), signal.SIGKILL)

    def end(self) -> int:
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(DEADLINE_S)
        for monitor in monitors(self.folder):  # its page stays
            monitor.send_signal(signal.SIGINT)
        until(lambda: not monitors(self.folder), "for the end of the page")


def until(condition: Callable[[], bool], what: str = "") -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain {what}"
        time.sleep(0.01)  # nothing announces a file


def monitors(folder: Path) -> list[psutil.Process]:
    """Monitors that were started in a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        is_one = MODULE in (process.info["cmdline"] or ()) and process.info["cwd"] == str(folder)
        found += [process] if is_one and process.info["status"] != psutil.STATUS_ZOMBIE else []
    return found


@contextmanager
def opened(*folders: Path) -> Iterator[str]:
    """Link of the page that ``farandole runs open`` serves."""
    process = subprocess.Popen(
        [sys.executable, "-m", "farandole", "runs", "open", *map(str, folders)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium with a fresh profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        try:
            yield started
        finally:
            started.close()


KEEP = os.environ.get("LIVE_PICTURES", "")
"""Folder for pictures of every state; "" for none."""


def picture(page: Any, name: str) -> None:
    """Keep a picture of the page, where that is asked for."""
    if KEEP:
        Path(KEEP, f"{name}.png").write_bytes(page.screenshot(full_page=True))


def press_stop(view: Any) -> None:
    """Press the button of a live view that ends all, and say yes; again where that came after the question was gone."""
    from playwright.sync_api import TimeoutError as Late

    until_s = time.monotonic() + DEADLINE_S
    while True:
        view.get_by_role("button", name="stop", exact=True).first.click()
        try:
            view.get_by_role("button", name="really stop?").click(timeout=5000)
        except Late:
            assert time.monotonic() < until_s, "the button does not ask"
        else:
            return


@final
class LiveSearch:
    """A search with a live page: each epoch of a trial waits for the file ``go``, or takes a tenth of a second."""

    SCRIPT = """
import pathlib, time
import numpy as np
import farandole.numpy as hvd
from farandole.numpy import elastic
def train(trial):
    x = trial.parameters["x"]
    hvd.init()
    state = elastic.NumpyState(weights={"w": np.zeros(1)}, epoch=0)
    trial.resume(state)
    @elastic.run
    def epochs(state):
        while state.epoch < trial.epochs:
            pathlib.Path("begun").touch()
            until = time.monotonic() + (0.02 if pathlib.Path("fast").exists() else 0.2)
            while time.monotonic() < until or not pathlib.Path("go").exists():
                time.sleep(0.01)
            state.epoch += 1
            loss = (x - 0.3) ** 2 + 1 / state.epoch
            trial.report(loss, state.epoch, accuracy=1 - loss / 4, learning_rate=0.1 / state.epoch)
    epochs(state)
"""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.record = folder, folder / "run"
        (folder / "tune.py").write_text(self.SCRIPT)
        (folder / "space.toml").write_text('[x]\nlow = 0.0\nhigh = 1.0\n[kind]\nchoices = ["sgd", "adam"]\n')
        with (folder / "space.toml").open("a") as space:
            space.write("[lr]\nlow = 1e-4\nhigh = 1.0\nlog = true\n")
        command = [sys.executable, "-m", "farandole", "search", "tune.py", "space.toml", "--live", "--live-stay", "0"]
        with open(folder / "out.txt", "wb") as out:
            self.process = subprocess.Popen(
                [*command, *options, "--folder", "run"], cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        until(lambda: (self.record / "live.link").exists() or self.process.poll() is not None, "for the link")
        assert self.process.poll() is None, self.said
        self.link = (self.record / "live.link").read_text().strip()

    @property
    def said(self) -> str:
        return (self.folder / "out.txt").read_text()

    def let(self, name: str) -> None:
        """Let trials go on: ``go``, or ``fast``."""
        (self.folder / name).touch()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(DEADLINE_S)
