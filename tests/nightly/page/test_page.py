"""The live page in Chromium: every state of it, its buttons, and that it holds up with many ranks."""

from __future__ import annotations

import math
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from farandole.control.private_file import write_private
from farandole.control.watch_messages import MetricPoint
from farandole.monitor.folder import MarkRecord, MemberRecord, PointRecord, RunInfo, RunWriter, TrialRecord, read_info
from farandole.monitor.runs import NO_END
from tests.support.monitor.page import CHROMIUM, LiveRun, opened, picture, press_stop
from tests.support.paths import ROOT

STATIC = ROOT / "src" / "farandole" / "monitor" / "static"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium"),
    pytest.mark.skipif(
        not (STATIC / "live.js").exists(), reason="the page is not bundled: make setup, with npm reachable"
    ),
]


def pill(page: Any, words: str) -> None:
    page.locator(".pill", has_text=words).wait_for()


def news(page: Any, begin: str) -> str:
    page.locator(".news", has_text=begin).wait_for()
    return str(page.locator(".news").text_content())


def step_in(words: str) -> int:
    return int(words.rsplit(maxsplit=1)[-1].replace(",", ""))


def test_a_training_is_watched_paused_saved_reloaded_and_stopped(page: Any, tmp_path: Path) -> None:
    run = LiveRun(tmp_path, ["-np", "2"])
    frames: list[str] = []
    page.on("websocket", lambda opened: opened.on("framereceived", lambda payload: frames.append(str(payload))))
    try:
        page.goto(run.link)
        page.locator("[data-name=loss] canvas").wait_for()
        page.locator("[data-name=step_s] canvas").wait_for()
        assert "key" not in page.url
        picture(page, "live")
        page.get_by_role("button", name="pause").click()
        paused = news(page, "paused at step")
        pill(page, "paused")
        picture(page, "live-paused")
        page.reload()
        pill(page, "paused")
        page.locator("[data-name=loss] canvas").wait_for()
        page.keyboard.press("p")  # nothing has the focus
        resumed = news(page, "resumed at step")
        assert resumed.split()[-1] == paused.split()[-1]
        page.locator("h1").click()
        page.keyboard.press("c")
        news(page, "checkpoint at step")
        page.locator(".output", has_text="saved").wait_for()
        ask_by_key(page)
        assert page.title() != "owned"
        press_stop(page)
        stopped = news(page, "stopped at step")
        assert run.end() == 0, run.said
        pill(page, "stopped")
        told = next(frame for frame in frames if '"stop","acted"' in frame)
        assert '"ended"' not in told, "the page is told at once, and not with the end of the job"
        page.locator(".banner[data-kind='']", has_text="The run was stopped by an order from its page").wait_for()
        page.locator(".banner", has_text=f"farandole runs open {run.record} shows it again").wait_for()
        assert step_in(stopped) > step_in(paused)
        picture(page, "live-ended")
    finally:
        run.close()


GOAL = """
import farandole.numpy as hvd
hvd.init()
for epoch in range(9):
    hvd.log(step_s=0.18, wait_s=0.0 if hvd.rank() else 0.08, epoch=(epoch + 1) / 3, epochs=6)
hvd.barrier()
open(f"go{hvd.rank()}").read()
hvd.log(epoch=6, epochs=6)
"""


def test_a_page_says_how_far_it_is_and_for_whom_the_others_wait(page: Any, tmp_path: Path) -> None:
    for rank in range(2):
        os.mkfifo(tmp_path / f"go{rank}")
    run = LiveRun(tmp_path, ["-np", "2"], GOAL)
    try:
        page.goto(run.link)
        page.locator(".facts", has_text="epoch 3 of 6 · about").wait_for()
        page.locator(".facts", has_text="rank 1 is 1.8× slower").wait_for()
        assert page.locator("progress").evaluate("e => e.value") == 0.5
        assert page.title() == "50 % · train.py"
        picture(page, "live-goal")
        for rank in range(2):
            (tmp_path / f"go{rank}").write_text("")
        assert run.end() == 0, run.said
        pill(page, "ended")
        page.locator(".facts", has_text="epoch 6 of 6").wait_for()
        assert page.locator("[data-name=epoch], [data-name=epochs]").count() == 0
    finally:
        run.close()


def test_a_page_stays_for_those_who_come_late(page: Any, tmp_path: Path) -> None:
    run = LiveRun(tmp_path, ["-np", "2"], stay_s=3600)
    late = page.context.new_page()
    try:
        page.goto(run.link)
        page.locator("[data-name=loss] canvas").wait_for()
        press_stop(page)
        assert run.end() == 0, run.said
        late.goto(run.link)
        page.reload()
        for each in (page, late):
            pill(each, "stopped")
            each.locator("[data-name=loss] canvas").wait_for()
            each.locator(".banner", has_text="This page and links to it stay until").wait_for()
        assert f"farandole runs open {run.record} shows it again" in str(page.locator(".banner").text_content())
        picture(page, "live-stays")
    finally:
        run.close()
    page.locator(".banner", has_text="This page has ended with it: farandole runs open").wait_for()
    page.locator("[data-name=loss] canvas").wait_for()


def ask_by_key(page: Any) -> None:
    """Press the key of the button that ends all where it is heard, and where it is not, and say no."""
    page.get_by_label("output of which rank").focus()
    page.keyboard.press("s")  # which is of the list there
    assert page.get_by_role("button", name="really stop?").count() == 0
    page.locator("h1").click()
    page.keyboard.press("s")
    page.get_by_role("button", name="really stop?").wait_for()
    page.keyboard.press("Escape")


FAILING = """
open("go").read()
raise ValueError("told so")
"""


def test_the_words_of_a_page_are_those_of_a_page(page: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    run = LiveRun(tmp_path, ["-np", "1"], FAILING)
    try:
        page.goto(run.link)
        pill(page, "starting")
        (tmp_path / "go").write_text("")
        assert run.end() == 1, run.said
        pill(page, "failed")
        picture(page, "live-failed")
        assert page.title() == "failed · train.py"
        page.locator(".banner[data-kind=bad]", has_text="its traceback is in the output, at [0]<stderr>:").wait_for()
    finally:
        run.close()
    assert "its traceback is above, at [0]<stderr>:" in run.said
    with opened(said(tmp_path / "long", {1: [1.0], 12_345_678: [0.5]})) as link:
        page.goto(link)
        page.locator(".facts", has_text="step 12,345,678").wait_for()
        page.locator(".banner", has_text="after step 12,345,678").wait_for()


SILENT = """
import threading
import farandole.numpy as hvd
hvd.init()
threading.Event().wait()
"""


def test_a_page_that_loses_its_server_says_so_and_a_wrong_key_is_refused(page: Any, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "a", ranks=2, points=30)
    with opened(folder) as link:
        page.goto(link[:-4] + "AAAA")
        page.locator(".banner[data-kind=bad]", has_text="This link opens nothing").wait_for()
        pill(page, "no access")
        assert page.locator(".chart").count() == 0
        picture(page, "live-refused")
    with opened(recorded(tmp_path / "loading", ranks=2, points=0)) as link:
        page.route_web_socket("**/socket", lambda _: None)  # a server that takes its time
        page.goto(link)
        pill(page, "loading")
        page.locator(".skeleton").wait_for()
        picture(page, "live-loading")
    page.unroute_all()
    page.close()
    page = page.context.new_page()
    silent = LiveRun(tmp_path, ["-np", "2"], SILENT)
    try:
        page.goto(silent.link)
        page.locator(".empty", has_text="No numbers yet").wait_for()
        picture(page, "live-empty")
        silent.kill_monitor()
        pill(page, "connection lost")
        page.locator(".banner[data-kind=warn]", has_text="The connection was lost").wait_for()
        picture(page, "live-lost")
    finally:
        silent.close()


def test_sixty_four_ranks_are_a_band_and_frames_stay_short(page: Any, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "a", ranks=64, points=10_000)
    with opened(folder) as link:
        page.goto(link)
        page.locator("[data-name=loss] canvas").wait_for()
        page.locator("label", has_text="lowest to highest of 64 ranks").wait_for()
        page.get_by_label("ranks whose own curves are shown").fill("3, 17")
        page.get_by_role("button", name="show").click()
        page.locator("[data-name=loss] .plot").hover()
        page.locator("[data-name=loss] .hover", has_text="rank 17").wait_for()
        frames = page.locator("#view").evaluate(FRAMES)
        picture(page, "live-band")
        median = sorted(frames)[len(frames) // 2]
        print(f"frame time with 64 ranks: median {median:.1f} ms of {len(frames)}")
        assert len(frames) >= 20
        assert median <= 16


FRAMES = """async (element) => {
  const view = element.farandole, times = [];
  for (let i = 0; i < 30; i++) {
    for (const chart of view.charts.values()) chart.dirty = true;
    const before = view.frames.length;
    view.redraw();
    while (view.frames.length === before) await new Promise(requestAnimationFrame);
    times.push(view.frames.at(-1));
  }
  return times;
}"""


def test_the_number_over_a_chart_is_the_mean_of_the_ranks_that_are_there(page: Any, tmp_path: Path) -> None:
    with opened(said(tmp_path / "many", {1: [float(rank) for rank in range(12)]})) as link:
        page.goto(link)
        headline(page, "loss", "5.5", "mean of 12 ranks")
        page.get_by_label("ranks whose own curves are shown").fill("0")
        page.get_by_role("button", name="show").click()
        page.locator("[data-name=loss] .plot").hover()
        page.locator("[data-name=loss] .hover", has_text="rank 0").wait_for()
        headline(page, "loss", "5.5", "mean of 12 ranks")
        picture(page, "live-band-headline")
    with opened(said(tmp_path / "left", {1: [1000.0] * 3, 2: [1.0]})) as link:
        page.goto(link)
        headline(page, "loss", "1", "rank 0")
    with opened(said(tmp_path / "few", {1: [1.0, 2.0, 6.0]})) as link:
        page.goto(link)
        headline(page, "loss", "3", "mean of 3 ranks")
        page.get_by_role("button", name="rank 2").click()
        headline(page, "loss", "1.5", "mean of 2 ranks")
        picture(page, "live-headline")
    with opened(said(tmp_path / "one", {1: [1.0, math.nan]})) as link:
        page.goto(link)
        headline(page, "loss", "not finite", "mean of 2 ranks")


def headline(page: Any, name: str, value: str, whose: str) -> None:
    over = page.locator(f"[data-name={name}] header")
    over.locator(".now", has_text=re.compile(f"^{re.escape(value)}$")).wait_for()
    over.locator(".whose", has_text=re.compile(f"^{whose}$")).wait_for()


def said(folder: Path, generations: dict[int, list[float]]) -> Path:
    """A run that is over: the losses of all ranks in each generation."""
    now = time.time() - 600
    with RunWriter.create(folder, RunInfo(now, ["python", "train.py"], str(folder), "host")) as writer:
        for generation, losses in generations.items():
            writer.append(MemberRecord(now, generation, ["a"] * len(losses)))
            for rank, loss in enumerate(losses):
                point = MetricPoint(now + generation, generation, 0, {"loss": loss})
                writer.append(PointRecord(rank, generation, [point]))
        writer.info.status, writer.info.ended_s = 0, now + 500
        writer.describe()
    return folder


def test_it_fits_a_phone_in_the_dark_and_can_be_used_by_keys(page: Any, tmp_path: Path) -> None:
    with opened(recorded(tmp_path / "a", ranks=3, points=200, trials=6)) as link:
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 400, "height": 800})
        page.goto(link)
        page.locator("[data-name=loss] canvas").wait_for()
        page.locator(".trials", has_text="finished").wait_for()
        assert page.locator(".farandole").evaluate("e => document.documentElement.scrollWidth") <= 400
        picture(page, "live-dark-400")
        plot = page.locator("[data-name=loss] .plot")
        plot.focus()
        page.keyboard.press("Home")
        page.locator(".unseen", has_text="loss, step 0: rank 0").wait_for(state="attached")
        page.get_by_role("button", name="rank 1").press("Enter")
        page.locator("button.rank[aria-pressed=false]", has_text="rank 1").wait_for()
        page.get_by_role("button", name="by time").press("Enter")
        page.locator("[data-name=loss] .plot[aria-label^='loss by time']").wait_for()
        page.locator(".trials").get_by_role("button", name="lr").click()
        assert page.locator(".trials th[aria-sort=ascending]").text_content() == "lr"
        assert page.locator(".events tr.fault", has_text="rank 1 was killed").count() == 1


def test_a_run_that_was_killed_is_opened_from_its_folder(page: Any, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", 2, 10, status=None)
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))  # nobody else gets this port, and nobody listens there
        link = f"http://127.0.0.1:{gone.getsockname()[1]}/#key=of-the-page-that-was-killed"
        write_private(folder / "live.link", link.encode())
        with opened(folder) as served:
            assert served.startswith("http://127.0.0.1:")
            assert served != link
            page.goto(served)
            pill(page, "ended")
            page.get_by_text(NO_END).wait_for()
            assert "runs open" not in str(page.locator(".banner").text_content()), "this page is that"
            picture(page, "live-killed")


def test_the_page_is_small() -> None:
    assert (
        sum((STATIC / name).stat().st_size for name in ("live.js", "live.css", "page.js", "index.html")) <= 144 * 1024
    )


def recorded(folder: Path, ranks: int, points: int, status: int | None = 0, trials: int = 0) -> Path:
    """A run that is over: so many ranks, each with so many points."""
    now = time.time() - 600
    info = RunInfo(now, ["python", "train.py"], str(folder), "host", versions={"torch": "2.13"}, seeds={"--seed": "3"})
    with RunWriter.create(folder, info) as writer:
        writer.append(MemberRecord(now, 1, ["a"] * ranks))
        for rank in range(ranks):
            numbers = [
                MetricPoint(
                    now + 0.05 * i, i, 32 * i, {"loss": math.exp(-i / 50) + 0.002 * rank + 0.004 * (i * 7 % 13)}
                )
                for i in range(points)
            ]
            for begin in range(0, points, 1000):
                writer.append(PointRecord(rank, 1, numbers[begin : begin + 1000]))
        if points:
            writer.append(MarkRecord(now + 0.02 * points, "fault", "rank 1 was killed by SIGKILL", points // 2))
            writer.append(MarkRecord(now + 0.021 * points, "recovery", "generation 2 goes on", points // 2))
        for trial in range(trials):
            state = ("finished", "running", "pruned")[trial % 3]
            writer.append(
                TrialRecord(now, trial, state, {"lr": 0.1 / (trial + 1), "opt": "sgd"}, {"acc": 0.9 - 0.01 * trial}, 9)
            )
        writer.output(0, b"[0]<stdout>:hello\n[1]<stderr>:\x1b[31mred\x1b[0m\n")
        if status is not None:
            writer.info.status, writer.info.ended_s = status, now + 500
            writer.describe()
    return folder


ELASTIC = """
import time
import urllib.request
import torch
import farandole.torch as hvd
hvd.init()
model = torch.nn.Linear(3, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, batch=0)

@hvd.elastic.run
def train(state):
    while True:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).pow(2).mean()
        loss.backward()
        optimizer.step()
        hvd.log(loss=loss)
        time.sleep(0.01)
        state.commit()

train(state)
"""


def test_an_elastic_job_is_resized_and_stopped(page: Any, tmp_path: Path) -> None:
    run = LiveRun(tmp_path, ["-np", "3", "--min-np", "1", "--max-np", "3"], ELASTIC)
    try:
        page.goto(run.link)
        page.locator("[data-name=loss] canvas").wait_for()
        page.locator(".facts", has_text="3 ranks").wait_for()
        page.get_by_label("number of workers").fill("2")
        page.get_by_role("button", name="resize").click()
        page.locator(".facts", has_text="2 ranks").wait_for()
        news(page, "resized: 2 ranks now")
        page.locator(".events", has_text="2 ranks on").wait_for()
        picture(page, "live-resized")
        page.get_by_label("number of workers").fill("7")
        page.get_by_role("button", name="resize").click()
        assert "this job has 1 to 3 workers" in news(page, "resize is refused")
        press_stop(page)
        news(page, "stopped at step")
        assert run.end() == 0, run.said
        pill(page, "stopped")
        assert read_info(run.record).stopped
    finally:
        run.close()
