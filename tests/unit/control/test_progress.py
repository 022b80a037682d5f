"""Progress bars where nobody watches them grow: the latest state every few seconds, and the last one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.control.output import PARTIAL_AFTER_S, STATE_EVERY_S, OutputSource


class File:
    """Stands where a sink does that is no terminal, and remembers."""

    live = broken = False

    def __init__(self) -> None:
        self.text = b""

    def lines(self, _: object, tag: bytes, text: bytes) -> None:
        assert text.endswith(b"\n")
        self.text += b"".join(tag + line for line in text.splitlines(keepends=True))

    def waits_for(self, _: object) -> bool:
        return False


@pytest.fixture
def file() -> File:
    return File()


@pytest.fixture
def source(file: File) -> OutputSource:
    return OutputSource(0, file, lambda: b"a:")  # type: ignore[arg-type]


def play(source: OutputSource, until_s: float) -> None:
    """Show what is due, as the pump does."""
    while source.due_s is not None and source.due_s <= until_s:
        source.show(source.due_s)


@pytest.mark.parametrize(("before", "after"), [("\r", ""), ("", "\r")], ids=["tqdm", "carriage return last"])
def test_a_bar_is_seen_every_few_seconds(file: File, source: OutputSource, before: str, after: str) -> None:
    for step in range(1001):  # ten a second, two thirds of a chunk each
        now = step / 10
        play(source, now)
        source.feed(f"{before}{step:4d} of 1000{after}".encode(), now)
    source.feed(b"\nnext\n", 100.2)
    lines = file.text.decode().splitlines()
    assert lines[-2:] == ["a:1000 of 1000", "a:next"]
    steps = [int(line[2:6]) for line in lines[:-1]]
    assert steps == sorted(set(steps))
    assert len(steps) == pytest.approx(100 / STATE_EVERY_S, abs=3)
    assert max(later - earlier for earlier, later in itertools.pairwise(steps)) <= 10 * STATE_EVERY_S + 2


def test_a_bar_that_stands_still_has_been_written_whole_and_once(file: File, source: OutputSource) -> None:
    source.feed(b"\r 10%", 0.0)
    play(source, 1000.0)
    assert file.text == b"a: 10%\n"
    source.feed(b"\r 2", 1000.0)  # in two reads
    source.feed(b"0%", 1000.0 + PARTIAL_AFTER_S / 2)
    play(source, 2000.0)
    assert file.text == b"a: 10%\na: 20%\n"
    assert source.tail.splitlines() == [" 10%", " 20%"]
    source.end()
    assert file.text == b"a: 10%\na: 20%\n"


def test_no_state_is_torn(file: File, source: OutputSource) -> None:
    whole = [f"{step:03d}|{step:03d}" for step in range(300)]
    stream = "".join(f"\r{state}" for state in whole).encode()
    for number in range(0, len(stream), 5):  # some end in the middle of a state
        now = number / 100
        play(source, now)
        source.feed(stream[number : number + 5], now)
    play(source, now + 1000.0)
    lines = [line[2:] for line in file.text.decode().splitlines()]
    assert set(lines) <= set(whole)
    assert lines[-1] == whole[-1]


def test_bars_of_any_length_need_no_memory(source: OutputSource) -> None:
    chunk = b"".join(b"\r%6d" % step for step in range(30_000))
    for number in range(140):  # 29 MB
        source.feed(chunk, float(number))
        play(source, float(number))
        assert sum(map(len, source._parts)) < 20


def test_a_traceback_behind_a_bar_is_in_the_tail(source: OutputSource) -> None:
    source.feed(b"\r 10%\r 20%", 0.0)
    play(source, 10.0)
    source.feed(b"\r 30%Traceback (most recent call last):\nKeyError: 1\n", 20.0)
    assert source.tail.splitlines() == [" 20%", " 30%Traceback (most recent call last):", "KeyError: 1"]


def test_lines_that_end_as_on_windows_stay_as_they_are(file: File, source: OutputSource) -> None:
    for chunk in (b"one\r\ntwo\r", b"\nthree\r\n"):
        source.feed(chunk, 0.0)
    assert file.text == b"a:one\r\na:two\r\na:three\r\n"


@given(st.lists(st.binary(min_size=1, max_size=9).map(lambda b: b.replace(b"\0", b"\r").replace(b"\1", b"\n"))))
def test_every_line_ends_with_what_was_to_be_seen(chunks: list[bytes]) -> None:
    file = File()
    source = OutputSource(0, file, lambda: b"")  # type: ignore[arg-type]
    for number, chunk in enumerate(chunks):
        play(source, number)
        source.feed(chunk, number)
    source.end()
    text, at = file.text, 0
    for line in b"".join(chunks).split(b"\n"):
        seen = line.rstrip(b"\r").rpartition(b"\r")[2]
        at = text.index(seen, at) + len(seen)
