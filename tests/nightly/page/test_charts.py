"""Charts of the live page in Chromium, as one works with them: smoothed, zoomed, read, and over the whole screen."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from farandole.control.watch_messages import MetricPoint
from farandole.monitor.folder import MemberRecord, PointRecord, RunInfo, RunWriter
from tests.nightly.page.test_page import pill, pytestmark, recorded, said
from tests.support.monitor.page import LiveRun, opened, picture

__all__ = ["pytestmark"]

COLUMNS = "e => { const u = e.farandole.charts.get('loss').uplot; return u.data.map(each => [...each]); }"


def debiased(values: list[float], weight: float) -> list[float]:
    """TensorBoard's smoothing, as the sum of all weights that it gives."""
    weights = [[weight ** (i - j) for j in range(i + 1)] for i in range(len(values))]
    return [math.fsum(w * v for w, v in zip(each, values, strict=False)) / math.fsum(each) for each in weights]


def test_curves_are_smoothed_as_in_tensorboard_and_stand_faint_behind(page: Any, tmp_path: Path) -> None:
    with opened(recorded(tmp_path / "a", ranks=1, points=80)) as link:
        page.goto(link)
        [_, plain] = drawn(page, 2)
        page.get_by_label("smoothing").evaluate(SLIDE, 0.9)
        [_, behind, smooth] = drawn(page, 3)
        assert behind == plain
        assert smooth == pytest.approx(debiased(plain, 0.9))
        assert page.locator("#view").evaluate("e => e.farandole.charts.get('loss').uplot.series[1].alpha") < 0.5
        over(page, 40)
        page.locator("[data-name=loss] .hover", has_text=f"{smooth[40]:.4g} ({plain[40]:.4g})").wait_for()
        page.reload()
        assert len(drawn(page, 3)) == 3, "the choice is of the session"
        page.emulate_media(color_scheme="dark")
        over(page, 40)
        picture(page, "live-smoothed")
        page.get_by_label("smoothing").evaluate(SLIDE, 0)
        assert drawn(page, 2)[1] == plain


SLIDE = "(e, to) => { e.value = to; e.dispatchEvent(new Event('input')); }"


def drawn(page: Any, count: int) -> list[list[float]]:
    """Columns of the chart of the loss, x first, once there are so many."""
    page.wait_for_function(
        "count => document.getElementById('view').farandole.charts.get('loss')?.uplot?.data.length === count", arg=count
    )
    columns: list[list[float]] = page.locator("#view").evaluate(COLUMNS)
    return columns


def over(page: Any, step: float, down: float = 60) -> None:
    """Move the pointer to a step of the loss."""
    page.locator("[data-name=loss] .u-over").wait_for()
    left = page.locator("#view").evaluate("(e, x) => e.farandole.charts.get('loss').uplot.valToPos(x, 'x')", step)
    box = page.locator("[data-name=loss] .u-over").bounding_box()
    page.mouse.move(box["x"] + left, box["y"] + down)


def test_a_mark_says_what_it_is_and_a_chart_has_no_empty_legend(page: Any, tmp_path: Path) -> None:
    with opened(recorded(tmp_path / "a", ranks=2, points=100)) as link:
        page.goto(link)
        drawn(page, 3)
        assert page.locator(".u-legend").count() == 0
        assert page.locator(".hover:visible").count() == 0
        over(page, 50)
        page.locator("[data-name=loss] .hover", has_text="rank 1 was killed by SIGKILL").wait_for()
        picture(page, "live-hover")
        over(page, 20)
        hover = page.locator("[data-name=loss] .hover", has_text="step 20")
        hover.wait_for()
        assert "rank 0" in hover.text_content()
        assert "SIGKILL" not in hover.text_content()
        page.locator("h1").hover()
        hover.wait_for(state="hidden")


def test_a_chart_fills_the_screen_and_goes_back(page: Any, tmp_path: Path) -> None:
    with opened(recorded(tmp_path / "a", ranks=2, points=100)) as link:
        page.goto(link)
        drawn(page, 3)
        chart = page.locator("[data-name=loss]")
        small = chart.bounding_box()
        button = chart.get_by_role("button", name="full screen")
        for back in (lambda: page.keyboard.press("Escape"), button.click):
            button.click()
            page.wait_for_function("() => document.querySelector('[data-name=loss] canvas').clientHeight > 700")
            assert chart.bounding_box() == {"x": 0, "y": 0, "width": 1280, "height": 900}
            picture(page, "live-full")
            back()
            page.wait_for_function("() => document.querySelector('[data-name=loss] canvas').clientHeight < 500")
            assert chart.bounding_box() == small


SCALE = "e => { const { min, max } = e.farandole.charts.get('loss').uplot.scales.x; return [min, max]; }"


def test_a_zoom_stays_when_numbers_come_and_a_double_click_ends_it(page: Any, tmp_path: Path) -> None:
    run = LiveRun(tmp_path, ["-np", "2"])
    try:
        page.goto(run.link)
        grown(page, 20)
        page.locator(".hint", has_text="drag in a chart to zoom").wait_for()
        reset = page.locator("[data-name=loss]").get_by_role("button", name="the whole curve again")
        x, y = middle(page)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 60, y + 10)
        page.mouse.up()
        reset.wait_for()
        [low, high] = page.locator("#view").evaluate(SCALE)
        length = grown(page, 0)
        assert grown(page, length + 50) > length
        assert page.locator("#view").evaluate(SCALE) == [low, high]
        page.get_by_label("logarithmic scale: loss").click()  # it is drawn anew
        grown(page, length + 100)
        assert page.locator("#view").evaluate(SCALE) == [low, high]
        picture(page, "live-zoomed")
        page.mouse.dblclick(x, y)
        reset.wait_for(state="hidden")
        grown(page, length + 150)
        assert page.locator("#view").evaluate(SCALE)[1] > high
    finally:
        run.close()


def grown(page: Any, count: int) -> int:
    """Wait until the chart of the loss has so many points."""
    length = "document.getElementById('view').farandole.charts.get('loss')?.uplot?.data[0].length"
    return int(page.wait_for_function(f"count => {length} >= count && {length}", arg=count).json_value())


def middle(page: Any) -> tuple[float, float]:
    box = page.locator("[data-name=loss] .u-over").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize("width", [1500, 1280, 800, 400])
def test_charts_fill_their_rows_and_the_loss_has_most_room(page: Any, tmp_path: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    with opened(with_names(tmp_path / "a", ["acc", "wait_s", "train_loss", "step_s", "samples_per_s", "loss"])) as link:
        page.goto(link)
        page.locator("[data-name=loss] canvas").wait_for()
        names = [each.get_attribute("data-name") for each in page.locator(".chart").all()]
        assert names == ["loss", "train_loss", "acc", "samples_per_s", "step_s", "wait_s"]
        boxes = [each.bounding_box() for each in page.locator(".chart").all()]
        rows: dict[float, list[dict[str, float]]] = {}
        for box in boxes:
            rows.setdefault(box["y"], []).append(box)
        whole = page.locator(".grid").bounding_box()["width"]
        for row in rows.values():
            assert sum(box["width"] + 12 for box in row) - 12 == pytest.approx(whole, abs=1)
        areas = [box["width"] * box["height"] for box in boxes]
        assert areas[0] > max(areas[1:])
        picture(page, f"live-layout-{width}")


def with_names(folder: Path, names: list[str], rate: float = 1.0) -> Path:
    """A run of two ranks that is over, which has logged these metrics, one after the other."""
    with RunWriter.create(folder, RunInfo(0.0, ["python", "train.py"])) as writer:
        writer.append(MemberRecord(0.0, 1, ["a", "a"]))
        for rank in range(2):
            points = [
                MetricPoint(step / 10, step, 0, dict.fromkeys(names[: step + 1], 1 / (1 + rate * step + rank)))
                for step in range(100)
            ]
            writer.append(PointRecord(rank, 1, points))
        writer.info.status, writer.info.ended_s = 0, 10.0
        writer.describe()
    return folder


def test_several_runs_are_over_each_other(page: Any, tmp_path: Path) -> None:
    runs = [with_names(tmp_path / "plain", ["acc", "loss"]), with_names(tmp_path / "tuned", ["acc", "loss"], 3)]
    with opened(*runs) as link:
        page.goto(link)
        page.locator("[data-name=loss] canvas").wait_for()
        pill(page, "compared")
        assert [each.text_content() for each in page.locator(".ranks button").all()] == ["plain", "tuned"]
        page.locator(".compared tr", has_text="lowest loss").wait_for()
        assert page.locator(".compared thead").text_content() == "plaintuned"
        over(page, 40)
        hover = page.locator("[data-name=loss] .hover", has_text="step 40")
        for name in ("plain", "tuned"):
            assert name in hover.text_content()
        picture(page, "live-compared")
        hidden = (".buttons", ".output", ".about", ".banner", "progress")
        assert not [each for each in hidden if page.locator(each).is_visible()]
        page.get_by_role("button", name="tuned").click()
        assert "plain" in page.locator("[data-name=loss] .plot").get_attribute("aria-label")
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.locator(".farandole").evaluate("e => document.documentElement.scrollWidth") <= 400
        picture(page, "live-compared-dark-400")


def test_membership_is_a_picture_once_it_has_changed(page: Any, tmp_path: Path) -> None:
    with opened(said(tmp_path / "same", {1: [1.0, 2.0]})) as link:
        page.goto(link)
        page.locator(".wide", has_text="2 ranks on a since").wait_for()
        assert page.locator(".wide svg:visible, .events:visible").count() == 0
        assert page.locator(".wide", has_text="2 ranks on a").bounding_box()["height"] < 60
    with opened(recorded(tmp_path / "fault", ranks=2, points=10)) as link:
        page.goto(link)
        page.locator(".events", has_text="rank 1 was killed").wait_for()
        assert page.locator(".wide svg:visible").count() == 0
    with opened(said(tmp_path / "changed", {1: [1.0, 2.0], 2: [1.0]})) as link:
        page.goto(link)
        page.locator(".events", has_text="generation 2: 1 rank on a").wait_for()
        page.locator(".wide svg").wait_for()


def test_an_axis_has_whole_steps_and_seconds(page: Any, tmp_path: Path) -> None:
    with opened(recorded(tmp_path / "short", ranks=2, points=10)) as link:
        page.goto(link)
        drawn(page, 3)
        for axis in ("step", "time"):
            page.locator(f"[data-name=loss] .plot[aria-label^='loss by {axis}']").wait_for()
            splits = "document.querySelector('#view').farandole.charts.get('loss').uplot.axes[0]._splits"
            page.wait_for_function(f"({splits} ?? []).length > 0")  # a chart is drawn in a later frame than its label
            ticks = page.evaluate(splits)
            assert ticks == [round(each) for each in ticks]
            page.get_by_role("button", name="by time").click()
