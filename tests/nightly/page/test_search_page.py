"""The page of a search in Chromium: its table of trials, their curves, and the buttons that its loop obeys."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from farandole.control.monitor_messages import MODULE
from farandole.monitor.runs import loaded
from tests.nightly.page.test_page import news, pill, pytestmark
from tests.support.monitor.page import DEADLINE_S, LiveSearch, opened, picture, press_stop, until

__all__ = ["pytestmark"]


def row(page: Any, trial: int, state: str) -> Any:
    """Row of a trial, once it is in that state."""
    found = page.locator(f".trials tbody tr.{state}", has=page.locator("td:first-child", has_text=f"{trial}"))
    found.first.wait_for()
    return found.first


def points(folder: Path, trial: int) -> list[int]:
    """Epochs of a trial that the log of trials has, in the order in which they were reported."""
    entries = [json.loads(line) for line in (folder / "trials.log").read_text().splitlines()]
    return [each["step"] for each in entries if each["op_code"] == 7 and each["trial_id"] == trial]


def press_twice(page: Any, name: str) -> None:
    button = page.get_by_role("button", name=name, exact=True)
    button.click()
    assert page.locator("button.sure").text_content() == "really?"
    button.click()


def test_a_search_is_watched_and_its_trials_are_paused_resumed_and_stopped(page: Any, tmp_path: Path) -> None:
    search = LiveSearch(tmp_path, "--trials", "9", "--pool", "2", "--epochs", "27", "--min-epochs", "9")
    try:
        page.goto(search.link)
        row(page, 0, "running")
        page.locator(".facts", has_text="2 of 9 trials").wait_for()
        page.get_by_role("button", name="pause trial 0").click()
        row(page, 0, "pausing")
        search.let("go")
        news(page, "trial 0 rests after epoch 1")
        row(page, 0, "held")
        assert "trial 0 begins" in str(page.locator(".events").text_content()), "it happened before the page was there"
        page.locator("[data-name=trials] canvas").wait_for()
        picture(page, "search-held")
        assert "has lost its workers" not in str(page.locator(".events").text_content())
        press_twice(page, "stop trial 1")
        news(page, "trial 1 has stopped after epoch")
        row(page, 1, "pruned")
        page.reload()
        row(page, 0, "held")
        page.get_by_role("button", name="resume trial 0").click()
        news(page, "trial 0 goes on after epoch 1")
        page.get_by_role("button", name="pause", exact=True).first.click()
        news(page, "all trials rest")
        assert page.get_by_role("button", name="resume trial 0").count() == 0, "the search rests"
        assert "training" not in str(page.locator(".buttons").evaluate("e => e.outerHTML"))
        pill(page, "paused")
        picture(page, "search-paused")
        search.let("fast")
        page.get_by_role("button", name="resume", exact=True).first.click()
        news(page, "trials begin and go on")
        assert search.process.wait(DEADLINE_S) == 0, search.said
        page.locator(".banner[data-kind=good]", has_text="The search has ended well").wait_for()
        assert page.locator(".trials .acts button").count() == 0
        page.locator(".facts", has_text="9 of 9 trials").wait_for()
        picture(page, "search-ended")
    finally:
        search.close()
    assert points(search.record, 0) == list(range(1, len(points(search.record, 0)) + 1)), "an epoch was trained twice"
    assert "stopped by a user" in (search.record / "trials.log").read_text()


def test_a_search_is_stopped_and_opened_again(page: Any, tmp_path: Path) -> None:
    search = LiveSearch(tmp_path, "--trials", "4", "--pool", "2", "--epochs", "729")  # more than it has time for
    try:
        search.let("go")
        page.goto(search.link)
        page.locator(".trials tbody tr.running").first.wait_for()  # trial 0 may rest already
        assert order(search, b'{"t":"order","verb":"stop-trial"}') == 200
        news(page, "stop a trial is refused: there is no trial -1")
        page.keyboard.press("c")
        news(page, "stop a trial is refused")  # a checkpoint is none of a search's orders
        page.locator("[data-name=trials] canvas").wait_for()
        press_stop(page)
        page.locator(".banner[data-kind=good]", has_text="the same call goes on").wait_for()
        assert search.process.wait(DEADLINE_S) == 1, search.said  # no trial is complete
    finally:
        search.close()
    before = page.locator(".trials tbody tr").count()
    with opened(search.record) as link:
        page.goto(link)
        page.locator("[data-name=trials] canvas").wait_for()
        assert page.locator(".trials tbody tr").count() == before
        assert page.locator(".trials .acts button").count() == 0
        page.locator(".trials tbody tr").first.click()
        page.locator("figure[data-name=accuracy] canvas").wait_for()
        picture(page, "search-selected")
        page.emulate_media(color_scheme="dark")
        picture(page, "search-selected-dark")
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.locator(".farandole").evaluate("e => document.documentElement.scrollWidth") <= 400
        picture(page, "search-dark-400")
    assert loaded(search.record).info.status == 0


@contextmanager
def ended(page: Any, folder: Path, *options: str) -> Iterator[Any]:
    """The view of a search that has ended."""
    search = LiveSearch(folder, "--pool", "1", *options)
    try:
        search.let("go")
        search.let("fast")
        assert search.process.wait(DEADLINE_S) == 0, search.said
    finally:
        search.close()
    with opened(search.record) as link:
        page.goto(link)
        page.locator("[data-name=trials] canvas").wait_for()
        yield page.locator("#view, body > *", has=page.locator(".farandole")).first


def test_a_row_and_its_line_light_each_other(page: Any, tmp_path: Path) -> None:
    with ended(page, tmp_path, "--trials", "3", "--epochs", "3") as view:
        page.locator(".trials tbody tr").nth(1).hover()
        lit = view.evaluate("""e => {
            const { uplot, drawnLines } = e.farandole.trials;
            return drawnLines.filter((_, i) => uplot.series[i + 1].alpha === 1);
        }""")
        assert lit == [1]
        at = view.evaluate("""e => {
            const u = e.farandole.trials.uplot, box = u.over.getBoundingClientRect();
            const first = u.data[1].findIndex((v) => v != null);
            return [box.left + u.valToPos(u.data[0][first], "x"), box.top + u.valToPos(u.data[1][first], "y")];
        }""")
        lit = view.evaluate("e => e.farandole.trials.drawnLines[0]")
        page.mouse.move(*at)
        page.locator(f".trials tbody tr.lit[data-trial='{lit}']").wait_for()
        assert page.locator(".trials tbody tr.lit").count() == 1
        picture(page, "search-lit")


def test_a_selected_row_shows_all_curves_of_its_trial(page: Any, tmp_path: Path) -> None:
    with ended(page, tmp_path, "--trials", "3", "--epochs", "3"):
        shown, row = page.locator("h3", has_text="curves of trial"), page.locator(".trials tbody tr").nth(1)
        columns = page.locator(".trials th").all_text_contents()
        assert columns[4:7] == ["value", "accuracy", "learning_rate"], "the best value of each is its last: one column"
        assert "best" not in columns
        row.click()
        page.locator("figure[data-name=accuracy] canvas").wait_for()
        names = [each.get_attribute("data-name") for each in page.locator(".trial-curves figure").all()]
        assert names == ["value", "accuracy", "learning_rate"]
        assert (shown.text_content(), row.get_attribute("aria-selected")) == ("curves of trial 1", "true")
        page.keyboard.press("ArrowDown")
        page.locator("h3", has_text="curves of trial 2").wait_for()
        page.keyboard.press("Escape")
        shown.wait_for(state="hidden")
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        page.locator("h3", has_text="curves of trial 0").wait_for()


def test_values_stand_against_each_hyper_parameter_with_its_importance(page: Any, tmp_path: Path) -> None:
    with ended(page, tmp_path, "--trials", "9", "--epochs", "9") as view:
        page.locator(".parameters .importance").first.wait_for()
        names = [each.get_attribute("data-name") for each in page.locator(".parameters figure").all()]
        assert set(names) == {"x", "kind", "lr"}
        shares = [int(each.inner_text().split()[0]) for each in page.locator(".parameters .importance").all()]
        assert shares == sorted(shares, reverse=True)
        assert 98 <= sum(shares) <= 102
        ticks = {
            name: page.locator(f".parameters figure[data-name={name}] text[text-anchor=middle]").all_text_contents()
            for name in names
        }
        assert ticks["kind"] == ["sgd", "adam"]
        assert ticks["lr"] == ["1.00e-4", "0.001", "0.01", "0.1", "1"]
        assert page.locator(".parameters figure[data-name=x] circle").count() == 9
        best = view.evaluate("e => e.farandole.trials.best()")
        assert page.locator(f".parameters circle.best[data-trial='{best}']").count() == 3
        page.locator(f".parameters figure[data-name=lr] circle[data-trial='{best}']").hover()
        page.locator(f".trials tbody tr.lit[data-trial='{best}']").wait_for()
        drawn = view.evaluate("e => e.farandole.trials.uplot.series.at(-1)")
        assert (drawn["label"], drawn["width"], drawn["dash"]) == (f"trial {best}", 3, [])
        page.locator(f".parameters figure[data-name=lr] circle[data-trial='{best}']").click()
        page.locator("h3", has_text=f"curves of trial {best}").wait_for()
        picture(page, "search-parameters")
        page.emulate_media(color_scheme="dark")
        picture(page, "search-parameters-dark")


def order(search: LiveSearch, body: bytes) -> int:
    """An order of a program; returns the status of the answer."""
    link, key = search.link.split("#key=")
    request = urllib.request.Request(f"{link.rstrip('/')}/order", data=body)
    request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return int(answer.status)


def test_a_trial_that_never_reports_is_stopped_ended_and_begun_again(page: Any, tmp_path: Path) -> None:
    search = LiveSearch(tmp_path, "--trials", "2", "--pool", "1", "--epochs", "3")
    try:
        page.goto(search.link)
        row(page, 0, "running")
        until((search.folder / "begun").exists, "for the trial")  # else it is let go before it begins
        press_twice(page, "stop trial 0")
        row(page, 0, "stopping")
        assert page.get_by_role("button", name="end trial 0 at once").text_content() == "end at once"
        press_twice(page, "end trial 0 at once")
        row(page, 0, "pruned")
        row(page, 1, "running")
        page.get_by_role("button", name="begin trial 0 again").click()
        news(page, "trial 0 begins again as trial 2")
        search.let("go")
        page.locator(".facts", has_text="3 of 3 trials").wait_for()
        assert search.process.wait(DEADLINE_S) == 0, search.said
    finally:
        search.close()


def test_trials_that_were_paused_go_on_when_the_page_is_gone(page: Any, tmp_path: Path) -> None:
    search = LiveSearch(tmp_path, "--trials", "1", "--pool", "1", "--epochs", "3", "--min-epochs", "3")
    try:
        page.goto(search.link)
        row(page, 0, "running")
        page.get_by_role("button", name="pause trial 0").click()
        row(page, 0, "pausing")
        search.let("go")
        row(page, 0, "held")
        [monitor] = [each for each in psutil.Process(search.process.pid).children(True) if MODULE in each.cmdline()]
        monitor.kill()
        pill(page, "connection lost")
        page.locator(".banner[data-kind=warn]", has_text="the search may well go on").wait_for()
        page.locator("button[aria-label='resume trial 0']:disabled").wait_for()
        picture(page, "search-lost")
        assert search.process.wait(DEADLINE_S) == 0, search.said
        assert "the live page has ended: all trials that were paused there go on" in search.said
    finally:
        search.close()
    assert points(search.record, 0) == [1, 2, 3]


def test_the_page_tells_why_a_search_has_ended(page: Any, tmp_path: Path) -> None:
    search = LiveSearch(tmp_path, "--trials", "1", "--pool", "1", "--epochs", "3")
    try:
        page.goto(search.link)
        row(page, 0, "running")
        search.process.send_signal(signal.SIGINT)
        page.locator(".banner[data-kind=bad]", has_text="with status 130. KeyboardInterrupt").wait_for()
    finally:
        search.close()
    assert loaded(search.record).words == "KeyboardInterrupt"


def test_a_search_without_trials_says_so(page: Any, tmp_path: Path) -> None:
    search = LiveSearch(tmp_path, "--trials", "4", "--pool", "leases", "--epochs", "9")  # and nobody lends it a node
    try:
        page.goto(search.link)
        page.locator(".empty", has_text="No trials yet").wait_for()
        page.locator(".facts", has_text="0 of 4 trials").wait_for()
        picture(page, "search-empty")
    finally:
        search.close()
