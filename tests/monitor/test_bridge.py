"""The bridge of a notebook's live view: what views ask, what they are told, and that it is none of the keys."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.errors import UsageError
from farandole.monitor.bridge import Bridge
from farandole.monitor.folder import read_info
from tests.monitor.page import DEADLINE_S


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
        bridge.take({"view": "a", "ask": "contact"})
        assert views.until("a", lambda m: "contact" in m)["contact"] == {"kernel": True}
        bridge.take({"view": "a", "open": True})  # perhaps before there is a page
        assert views.until("a", lambda m: m.get("t") == "hello")["orders"]
        assert "look" not in views.texts[-1]  # no browser can come to a socket of files
        views.until("a", lambda m: m.get("t") == "curve" and m["name"] == "loss")
        key = job.link_file.read_text().split("#key=")[1].strip()
        for junk in (None, 3, {}, {"view": 3}, {"view": "x" * 99, "open": True}, {"view": "b", "send": "x"}):
            bridge.take(junk)
        bridge.take({"view": "a", "send": '{"t":"order","verb":"scale","workers":0}'})
        assert "asks for no worker" in views.until("a", lambda m: m.get("t") == "order")["order"][4]
        bridge.take({"view": "a", "send": '{"t":"order","verb":"pause"}'})
        acted = views.until("a", lambda m: m.get("t") == "order" and m["order"][3] == "acted")
        bridge.take({"view": "b", "open": True})
        assert views.until("b", lambda m: m.get("t") == "run")["state"] == "paused"
        bridge.take({"view": "b", "gone": True})
        bridge.take({"view": "a", "seen": 10**6})
    finally:
        job.stop()
    ended = views.until("a", lambda m: m.get("state") == "ended")
    assert ended["step"] == acted["order"][5]
    views.until("a", lambda m: "closed" in m)
    bridge.take({"view": "c", "open": True})
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
