"""The page of a search in Chromium: its table of trials, their curves, and the buttons that its loop obeys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farandole.monitor.runs import loaded
from tests.monitor.page import DEADLINE_S, LiveSearch, browser, opened, picture
from tests.monitor.test_page import news, pill, pytestmark

__all__ = ["pytestmark"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    opened_page = context.new_page()
    troubles: list[str] = []
    opened_page.on("pageerror", lambda error: troubles.append(str(error)))
    yield opened_page
    context.close()
    assert not troubles


def row(page: Any, trial: int, state: str) -> Any:
    """Row of a trial, once it is in that state."""
    found = page.locator(f".trials tbody tr.{state}", has=page.locator("td:first-child", has_text=f"{trial}"))
    found.first.wait_for()
    return found.first


def points(folder: Path, trial: int) -> list[int]:
    """Epochs of a trial that the log of trials has, in the order in which they were reported."""
    entries = [json.loads(line) for line in (folder / "trials.log").read_text().splitlines()]
    return [each["step"] for each in entries if each["op_code"] == 7 and each["trial_id"] == trial]


def test_a_search_is_watched_and_its_trials_are_paused_resumed_and_stopped(page: Any, tmp_path: Path) -> None:
    search = LiveSearch(tmp_path, "--trials", "9", "--pool", "2", "--epochs", "27", "--min-epochs", "9")
    try:
        page.goto(search.link)
        row(page, 0, "running")
        page.locator(".facts", has_text="2 of 9 trials").wait_for()
        page.get_by_role("button", name="pause trial 0").click()
        row(page, 0, "pausing")
        search.let("go")
        assert "rests after epoch 1" in news(page, "pause-trial: trial 0")
        row(page, 0, "held")
        page.locator("[data-name=trials] canvas").wait_for()
        picture(page, "search-held")
        assert "has lost its workers" not in str(page.locator(".events").text_content())
        stop = page.get_by_role("button", name="stop trial 1", exact=True)
        stop.click()
        assert page.locator("button.sure").text_content() == "really?"
        stop.click()
        news(page, "stop-trial: trial 1 has stopped after epoch")
        row(page, 1, "pruned")
        page.reload()
        row(page, 0, "held")
        page.get_by_role("button", name="resume trial 0").click()
        news(page, "resume-trial: trial 0 goes on after epoch 1")
        page.get_by_role("button", name="pause", exact=True).first.click()
        news(page, "pause: all trials rest")
        pill(page, "paused")
        picture(page, "search-paused")
        search.let("fast")
        page.get_by_role("button", name="resume", exact=True).first.click()
        news(page, "resume: trials begin and go on")
        assert search.process.wait(DEADLINE_S) == 0, search.said
        page.locator(".banner[data-kind=good]", has_text="The search has ended well").wait_for()
        assert page.locator(".trials .acts button").count() == 0
        page.locator(".facts", has_text="9 of 9 trials").wait_for()
        picture(page, "search-ended")
    finally:
        search.close()
    assert points(search.record, 0) == list(range(1, len(points(search.record, 0)) + 1)), "an epoch was trained twice"
    assert "somebody has stopped it" in (search.record / "trials.log").read_text()


def test_a_search_is_stopped_and_opened_again(page: Any, tmp_path: Path) -> None:
    search = LiveSearch(tmp_path, "--trials", "4", "--pool", "2", "--epochs", "9")
    try:
        search.let("go")
        page.goto(search.link)
        row(page, 0, "running")
        page.locator("[data-name=trials] canvas").wait_for()
        page.get_by_role("button", name="stop", exact=True).first.click()
        page.get_by_role("button", name="really stop?").click()
        page.locator(".banner[data-kind=good]", has_text="the same call goes on").wait_for()
        assert search.process.wait(DEADLINE_S) in (0, 1), search.said
    finally:
        search.close()
    before = page.locator(".trials tbody tr").count()
    with opened(search.record) as link:
        page.goto(link)
        page.locator("[data-name=trials] canvas").wait_for()
        assert page.locator(".trials tbody tr").count() == before
        assert page.locator(".trials .acts button").count() == 0
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.locator(".farandole").evaluate("e => document.documentElement.scrollWidth") <= 400
        picture(page, "search-dark-400")
    assert loaded(search.record).info.status == 0
