"""What a live view costs: ``hvd.log`` where nobody looks, and the page from a click to a training that has stopped."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.divergence import costs
from benchmarks.job import launch
from benchmarks.measure import Row, Sample, Table, Verdict

SECONDS = 240.0


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    tables = [
        costs(f"Cost of hvd.log in each step where nobody looks, beside {title}, 2 ranks", measured, most=most)
        for beside, title, most in (("call", "an empty function", 0.5), ("nothing", "no call", None))
        for measured in (launch("monitor_rank", SECONDS / (8 if quick else 1), beside),)
    ]
    return [*tables, *_page(3 if quick else 15)]


def _page(rounds: int) -> list[Table]:
    """The page in Chromium; nothing where that is not to be had."""
    try:
        from tests.nightly.page.test_page import FRAMES, news, recorded
        from tests.support.monitor.page import CHROMIUM, LiveRun, browser, opened
    except ImportError as error:
        print(f"the page is left out: {error}", file=sys.stderr)
        return []
    if CHROMIUM is None:
        print("the page is left out, as there is no Chromium: apt-get install chromium", file=sys.stderr)
        return []
    taken_ms = []
    with tempfile.TemporaryDirectory() as folder, browser() as started:
        page = started.new_page(viewport={"width": 1280, "height": 900})
        with opened(recorded(Path(folder) / "many", ranks=64, points=10_000)) as link:
            page.goto(link)
            page.locator("label", has_text="lowest to highest of 64 ranks").wait_for()
            frames = page.locator("#view").evaluate(FRAMES)
        for number in range(rounds):
            here = Path(folder) / str(number)
            here.mkdir()
            job = LiveRun(here, ["-np", "2"])
            try:
                page.goto(job.link)
                page.locator("[data-name=loss] canvas").wait_for()
                page.get_by_role("button", name="stop").click()
                begun_s = time.perf_counter()
                page.get_by_role("button", name="really stop?").click()
                news(page, "stopped at step")
                taken_ms.append(1e3 * (time.perf_counter() - begun_s))
                job.end()
            finally:
                job.close()
    click, frame = Sample.of(taken_ms), Sample.of(frames)
    rows = [
        Row("click to 'stopped at step N'", {"2 ranks": click}, (Verdict(max(taken_ms), "ms at most", most=500.0),)),
        Row("a frame, 64 ranks of 10,000 points", {"": frame}, (Verdict(frame.median, "ms", most=16.0),)),
    ]
    return [Table("The page of a live run, in Chromium", "ms", rows=rows)]
