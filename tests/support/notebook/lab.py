"""JupyterLab of this environment, on a port of its own, and notebooks in it that Chromium opens."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from tests.support.patience import PATIENCE_S

DEADLINE_S = 2 * PATIENCE_S


@final
class Lab:
    """A JupyterLab whose files are in ``folder``; at the end its kernels are ended, too."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._token = folder, secrets.token_hex(16)
        state = folder / ".jupyter"
        own = {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        places = ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
        told = {place: str(state / place.lower()) for place in places} | {"IPYTHONDIR": str(state / "ipython")}
        options = (
            f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={self._token}", "--no-browser",
            "--ServerApp.port=0", "--allow-root", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        )  # fmt: skip
        quiet = state / "jupyterlab_settings_dir" / "@jupyterlab" / "apputils-extension"
        quiet.mkdir(parents=True)
        (quiet / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
        with open(folder / "lab.txt", "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *options],
                env={**own, **told},
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )
        self._address = self._await_address(state / "jupyter_runtime_dir")

    def _await_address(self, runtime: Path) -> str:
        until_s = time.monotonic() + DEADLINE_S
        while not (found := list(runtime.glob("jpserver-*.json"))):
            assert self.process.poll() is None, (self.folder / "lab.txt").read_text()
            assert time.monotonic() < until_s, "JupyterLab has not begun"
            time.sleep(0.05)  # nothing announces a file
        return str(json.loads(found[0].read_text())["url"])

    def link(self, name: str) -> str:
        """Link to a notebook alone."""
        return f"{self._address}doc/tree/{name}?token={self._token}"

    def write(self, name: str, cells: Sequence[str]) -> Path:
        """Write a notebook of these cells."""
        written: list[dict[str, Any]] = [
            {"cell_type": "code", "id": f"c{i}", "metadata": {}, "outputs": [], "execution_count": None, "source": cell}
            for i, cell in enumerate(cells)
        ]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        path = self.folder / name
        path.write_text(json.dumps({"cells": written, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
        return path

    def close(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE_S)


def opened(page: Any, link: str) -> None:
    """Open a notebook, and wait for its kernel."""
    page.goto(link)
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()


def run_cell(page: Any, number: int) -> Any:
    """Run one cell, and return it."""
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
    prompt = cell.locator(".jp-InputArea-prompt")
    until_s = time.monotonic() + DEADLINE_S
    while (prompt.text_content() or "").strip() == "[ ]:":  # what is pressed before all of it is there, is lost
        assert time.monotonic() < until_s, "the cell is not run"
        prompt.click()
        page.locator("[data-command='notebook:run-cell-and-select-next']").first.click()
        page.wait_for_timeout(1000)
    return cell


def interrupt(page: Any) -> None:
    """Interrupt the kernel."""
    page.locator("[data-command='notebook:interrupt-kernel']").first.click()
