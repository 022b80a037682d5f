"""The live view as a widget of a notebook: the module of the page, which gets its data from the kernel.

    job = farandole.launch(train, np=2)
    job.widget

The widget has no trait with data or keys. When the job has ended, a picture, which the notebook keeps, replaces every
shown widget: JupyterLab shows no picture beside a widget whose kernel has exited. ``job.widget`` shows it again.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from importlib import resources
from typing import Any, final

import anywidget
from IPython.display import publish_display_data

from farandole.errors import UnsupportedError
from farandole.monitor.bridge import Bridge, ViewedJob, last_state
from farandole.monitor.kernel_wait import serve_while_waiting
from farandole.monitor.picture import picture, words


def _static(name: str) -> str:
    path = resources.files("farandole.monitor").joinpath("static", name)
    if not path.is_file():
        raise UnsupportedError(
            "this installation of Farandole has no live view: its wheel was built where neither Node nor the npm "
            "registry could be reached"
        )
    return path.read_text(encoding="utf-8")


@final
class LiveWidget(anywidget.AnyWidget):
    """Live view of one job; it can be shown any number of times."""

    _esm = _static("live.js")
    _css = _static("live.css")

    def __init__(self, job: ViewedJob) -> None:
        super().__init__()
        self._bridge = Bridge(job, self.send)
        self.on_msg(self._heard)
        if self.comm is not None:  # in ipykernel 7.4, messages of the view would wait for the last cell
            self.comm._reply_subshell_for = lambda _data, subshell: subshell
        self._job, self._display = job, f"farandole-{secrets.token_hex(8)}"
        job.when_over(self._keep)

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait in a cell, and carry out orders of views meanwhile, if the kernel allows it."""
        if self.comm is not None:
            serve_while_waiting(self.comm.comm_id, self._bridge.handle_view_message, until)

    def close(self) -> None:
        self._bridge.close()
        super().close()

    def _ipython_display_(self) -> None:
        data, metadata = self._repr_mimebundle_() or ({}, {})
        transient = {} if self._job.done else {"display_id": self._display}
        publish_display_data({**data, **(self._picture() if self._job.done else {})}, metadata, transient=transient)

    def _keep(self) -> None:
        """Replace the views by the final picture."""
        publish_display_data(self._picture(), transient={"display_id": self._display}, update=True)

    def _picture(self) -> dict[str, str]:
        hub = last_state(self._job, is_over=True)
        return {"image/png": base64.b64encode(picture(hub)).decode(), "text/plain": words(hub)}

    def _heard(self, _widget: object, content: Any, _buffers: object) -> None:
        self._bridge.handle_view_message(content)
