"""The bridge of a notebook's live view: what views ask, what they are told, and that it is none of the keys."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import farandole
from farandole.control.private_file import write_private
from farandole.errors import ControlError, UnsupportedError, UsageError
from farandole.monitor import launching
from farandole.monitor.bridge import Bridge
from farandole.monitor.folder import read_info
from tests.support.monitor.page import DEADLINE_S


def train() -> None:
    import numpy as np

    import farandole.numpy as hvd

    hvd.init()
    gradients = hvd.DistributedGradients([np.zeros(3, np.float32)])
    step = 0
    while True:
        gradients([np.ones(3, np.float32)])
        step += 1
        hvd.log(loss=1 / step)
        time.sleep(0.01)


class StrangeJob:
    """A job whose link leads to something that is no monitor."""

    def __init__(self, link_file: Path, path: Path) -> None:
        write_private(link_file, f"unix:{path}/#key=k\n".encode())
        self.link_file, self.done, self.status = link_file, False, 1
        self.record: Path | None = Path("none")

    def when_over(self, call: Callable[[], None]) -> None:
        raise NotImplementedError

    def resize(self, np: int) -> None:
        raise NotImplementedError


@contextmanager
def refusing(path: Path) -> Iterator[queue.Queue[bytes]]:
    """A server at a socket in the file system that has no room; what it was asked."""
    asked: queue.Queue[bytes] = queue.Queue()

    def serve() -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                connection, _ = server.accept()
                with connection:
                    asked.put(connection.recv(2**16))
                    connection.sendall(b"HTTP/1.1 503 Full\r\nContent-Length: 0\r\n\r\n")

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


class Views:
    """Messages that a bridge tells, in order."""

    def __init__(self) -> None:
        self.told: queue.Queue[dict[str, Any]] = queue.Queue()
        self.texts: list[str] = []

    def until(self, view: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message from now on to this view that is as wanted."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            said = self.told.get(timeout=max(0.0, until_s - time.monotonic()))
            self.texts.append(json.dumps(said))
            if said["view"] != view:
                continue
            for message in [said, *json.loads(said.get("text", "[]"))]:
                if condition(message):
                    return dict(message)


def test_views_get_all_of_it_give_orders_and_see_a_job_that_has_ended(tmp_path: Path) -> None:
    job = farandole.launch(train, np=2, live=True, record=tmp_path / "run")
    views = Views()
    bridge = Bridge(job, views.told.put)
    try:
        bridge.handle_view_message({"view": "a", "ask": "contact"})
        assert views.until("a", lambda m: "contact" in m)["contact"] == {"kernel": True}
        bridge.handle_view_message({"view": "a", "open": True})  # perhaps before there is a page
        assert views.until("a", lambda m: m.get("t") == "hello")["orders"]
        assert "look" not in views.texts[-1]  # no browser can come to a socket of files
        views.until("a", lambda m: m.get("t") == "curve" and m["name"] == "loss")
        key = job.link_file.read_text().split("#key=")[1].strip()
        for junk in (None, 3, {}, {"view": 3}, {"view": "x" * 99, "open": True}, {"view": "b", "send": "x"}):
            bridge.handle_view_message(junk)
        bridge.handle_view_message({"view": "a", "send": '{"t":"order","verb":"scale","workers":0}'})
        assert "asks for no worker" in views.until("a", lambda m: m.get("t") == "order")["order"][4]
        bridge.handle_view_message({"view": "a", "send": '{"t":"order","verb":"pause"}'})
        acted = views.until("a", lambda m: m.get("t") == "order" and m["order"][3] == "acted")
        bridge.handle_view_message({"view": "b", "open": True})
        assert views.until("b", lambda m: m.get("t") == "run")["state"] == "paused"
        bridge.handle_view_message({"view": "b", "gone": True})
        bridge.handle_view_message({"view": "a", "seen": 10**6})
    finally:
        job.stop()
    ended = views.until("a", lambda m: m.get("state") == "ended")
    assert ended["step"] == acted["order"][5]
    views.until("a", lambda m: "closed" in m)
    bridge.handle_view_message({"view": "c", "open": True})
    assert views.until("c", lambda m: m.get("t") == "run")["step"] == ended["step"]
    views.until("c", lambda m: "closed" in m)
    bridge.close()
    assert not [text for text in views.texts if key in text]
    assert read_info(tmp_path / "run").ended_s
    assert not job.link_file.exists()


def test_a_record_is_of_one_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="record of another run"):
        farandole.launch(train, live=True, record=tmp_path)


def rank() -> int:
    import farandole.numpy as hvd

    hvd.init()
    hvd.log(loss=1.0)
    return hvd.rank()


def test_a_view_stands_where_the_temporary_folder_has_too_long_a_name_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    job = farandole.launch(train, live=True)
    try:
        views = Views()
        bridge = Bridge(job, views.told.put)
        bridge.handle_view_message({"view": "a", "open": True})
        views.until("a", lambda m: m.get("t") == "curve" and m["name"] == "loss")
    finally:
        job.stop()
    views.until("a", lambda m: "closed" in m)
    assert job.record is not None
    assert job.record.is_relative_to(folder)


def test_a_view_that_nobody_asked_for_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launching, "can_show", lambda: True)  # as in a kernel
    (tmp_path / "tornado.py").write_text("raise ImportError('half an installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    job = farandole.launch(rank, np=2)
    assert job.result(DEADLINE_S) == [0, 1]
    assert "the training has no live view: " in capfd.readouterr().err
    views = Views()
    bridge = Bridge(job, views.told.put)
    bridge.handle_view_message({"view": "a", "open": True})
    assert views.until("a", lambda m: m.get("state") == "ended")["status"] == 0
    views.until("a", lambda m: "closed" in m)
    for asked in ({"live": True}, {"record": tmp_path / "run"}):
        with pytest.raises(ControlError):
            farandole.launch(rank, **asked).result(DEADLINE_S)


def test_a_record_needs_no_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "NEEDED", ("none_of_these",))
    job = farandole.launch(rank, np=2, live=False, record=tmp_path / "run")
    assert job.result(DEADLINE_S) == [0, 1]
    assert read_info(tmp_path / "run").status == 0
    with pytest.raises(UnsupportedError, match="no live view"):
        _ = job.widget
    with pytest.raises(UsageError, match="none_of_these"):
        farandole.launch(rank, live=True)


def test_a_view_is_told_when_its_thread_ends_by_what_nobody_expects(tmp_path: Path) -> None:
    views = Views()
    with refusing(tmp_path / "live") as answered:
        job = StrangeJob(tmp_path / "live.link", tmp_path / "live")
        bridge = Bridge(job, views.told.put)
        bridge.handle_view_message({"view": "a", "open": True})
        answered.get(timeout=DEADLINE_S)  # HTTP 503: it is asked again
        answered.get(timeout=DEADLINE_S)
        job.done = True
        assert views.until("a", lambda m: m.get("state") == "ended")["status"] == 1
        views.until("a", lambda m: "closed" in m)
        job.record = cast("Path", 3)  # what nobody expects
        bridge.handle_view_message({"view": "b", "open": True})
        views.until("b", lambda m: "closed" in m)
