"""What a notebook says of cells, and reads of their ends; without a kernel."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from farandole.notebook.cells import CellMark, CellStart, difference, title_of
from farandole.notebook.outcome import CellOutcome, first_cause
from farandole.notebook.output import RankLines

serials = st.integers(1, 2**40)


@given(st.builds(CellMark, serials, serials, st.lists(st.integers(0, 99)), st.booleans()))
def test_a_mark_travels_as_a_label(mark: CellMark) -> None:
    assert CellMark.of(mark.label) == mark


@given(st.one_of(st.none(), st.text(), st.text().map("farandole {}".format)))
def test_other_labels_are_no_marks(label: object) -> None:
    assert CellMark.of(label) is None


@given(st.text(), serials, serials)
def test_the_same_text_is_another_cell_when_it_is_sent_again(source: str, one: int, other: int) -> None:
    starts = [CellStart.of(CellMark(serial, 0, [0, 1], is_whole=True), source) for serial in (one, other)]
    assert bool(difference(starts, ["rank 0 on a", "rank 1 on a"])) == (one != other)


def test_a_difference_names_each_rank_and_its_cell() -> None:
    starts = [CellStart.of(None, "train(1)"), CellStart.of(None, "train(2)")]
    told = difference(starts, ["rank 0 on a", "rank 1 on b"])
    assert "rank 0 on a runs the cell (train(1))" in told
    assert "rank 1 on b runs the cell (train(2))" in told


def test_a_cell_without_a_mark_is_known_again_by_its_source_and_how_often_it_has_run() -> None:
    first = CellStart.of(None, "train(1)")
    reason = f"rank 1 on a gave up: {first.name}{first.tag} raised ValueError: no data"
    assert first.is_named_in(reason)
    for other in (
        CellStart.of(None, "train(2)"),
        msgspec.structs.replace(first, run=2),
        CellStart.of(CellMark(1, 0, [0, 1], is_whole=True), "train(1)"),
    ):
        assert not other.is_named_in(reason)


@given(st.text())
def test_titles_are_short(source: str) -> None:
    assert 1 <= len(title_of(source)) <= 60


@given(st.lists(st.text(st.characters(exclude_categories=["Zl", "Zp", "Cc"])).map(str)), st.data())
def test_lines_are_shown_once_and_in_order(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    shown, taken = RankLines("stdout", 3), ""
    for cut in cuts:
        taken += shown.new_lines(text[:cut])
    taken += shown.new_lines(text, is_over=True)
    assert taken == "".join(f"[stdout:3] {line}\n" for line in text.removesuffix("\n").split("\n")) * bool(text)
    assert shown.new_lines(text, is_over=True) == ""


def test_the_cause_comes_before_what_follows_from_it() -> None:
    following, cause = CellOutcome("AbortError", "rank 2 gave up"), CellOutcome("ValueError", "no data")
    skipped, died = CellOutcome("TaskAborted"), CellOutcome("EngineError")
    assert first_cause({0: following, 1: CellOutcome(), 2: cause}) == 2
    assert first_cause({0: skipped, 1: following, 2: died, 3: cause}) == 2
    assert first_cause({0: CellOutcome(), 1: CellOutcome()}) is None
