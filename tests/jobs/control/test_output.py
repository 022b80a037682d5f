"""The pump: lines are whole whatever the chunks, and a tail is kept."""

from __future__ import annotations

import os
import pty
import re
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.control.output import PARTIAL_AFTER_S, TAIL_LINES, OutputSource, Pump, Sink
from tests.support.patience import PATIENCE_S

DEADLINE_S = PATIENCE_S


def shown(text: bytes) -> list[str]:
    """Lines that a terminal shows of a text."""
    lines, at = [""], 0
    for c in text.decode():
        if c == "\n":
            lines, at = [*lines, ""], 0
        elif c == "\r":
            at = 0
        else:
            lines[-1], at = lines[-1][:at] + c + lines[-1][at + 1 :], at + 1
    return [line for line in lines if line]


def terminal(count: int) -> tuple[list[OutputSource], list[bytes]]:
    """Sources of one terminal, and what it gets."""
    written: list[bytes] = []

    def write(text: bytes) -> bool:
        written.append(text)
        return True

    sink = Sink(write, live=True)
    return [OutputSource(0, sink, f"[{i}]".encode) for i in range(count)], written


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
def test_bars_of_several_sources_on_a_terminal_lose_no_end_and_tear_no_line(story: list[tuple[int, bool]]) -> None:
    sources, written = terminal(3)
    done = [0, 0, 0]
    for time, (i, is_end) in enumerate(story):
        done[i] += 1
        sources[i].feed(f"\r{done[i]:3}%".encode() + b"\n" * is_end, time / 5)
        for source in sources:
            if source.due_s is not None and source.due_s <= time / 5 + PARTIAL_AFTER_S:
                source.show(time / 5 + PARTIAL_AFTER_S)
    for source in sources:
        source.end()
    lines = shown(b"".join(written))
    assert all(re.fullmatch(r"\[\d\] +\d+%", line) for line in lines), lines
    for i in range(3):
        states = [int(line[3:-1]) for line in lines if line.startswith(f"[{i}]")]
        assert states == sorted(states)
        assert (states[-1:] or [0]) == [done[i]]


def test_two_bars_on_a_terminal_take_the_lines_of_a_log() -> None:
    sources, written = terminal(2)
    for step in range(1, 61):
        for source in sources:
            source.feed(f"\r{step:3}/60".encode(), step / 10)
        for source in sources:
            if source.due_s is not None and source.due_s <= step / 10:
                source.show(step / 10)
    for source in sources:
        source.feed(b"\n", 6.1)
    lines = shown(b"".join(written))
    assert len(lines) <= 8, lines
    assert lines[-2:] == ["[0] 60/60", "[1] 60/60"]


def test_one_bar_on_a_terminal_is_drawn_over() -> None:
    [source], written = terminal(1)
    for step in range(1, 61):
        source.feed(f"\r{step:3}/60".encode(), step / 10)
        source.show(step / 10)
    source.feed(b"\n", 6.1)
    assert shown(b"".join(written)) == ["[0] 60/60"]
    assert len(written) >= 60


class Recorder:
    """Stands where a sink does and remembers."""

    live = broken = False

    def __init__(self) -> None:
        self.text = b""

    def lines(self, _: object, tag: bytes, text: bytes) -> None:
        assert text.endswith(b"\n")
        self.text += b"".join(tag + line for line in text.splitlines(keepends=True))

    def waits_for(self, _: object) -> bool:
        return False


@given(st.lists(st.binary(min_size=1).map(lambda b: b.replace(b"\r", b"")).filter(bool)))
def test_any_chunks_make_the_same_lines(chunks: list[bytes]) -> None:
    sink = Recorder()
    source = OutputSource(0, sink, lambda: b"")  # type: ignore[arg-type]
    for chunk in chunks:
        source.feed(chunk, 0.0)
    source.end()
    text = b"".join(chunks)
    assert sink.text == text + (b"" if text.endswith(b"\n") or not text else b"\n")
    assert source.tail == "\n".join(sink.text.decode(errors="replace").splitlines()[-TAIL_LINES:])


@contextmanager
def pumping(sink: Sink, *tags: bytes) -> Iterator[tuple[Pump, list[OutputSource], list[int]]]:
    """A running pump, its sources, and the ends to write to; all is written when the block is left."""
    pump = Pump()
    pipes = [os.pipe() for _ in tags]
    sources = [pump.add(reader, sink, lambda tag=tag: tag) for (reader, _), tag in zip(pipes, tags, strict=True)]  # type: ignore[misc]
    pump.start()
    try:
        yield pump, sources, [writer for _, writer in pipes]
    finally:
        for _, writer in pipes:
            os.close(writer)
        pump.finish()
        assert select.select([pump.ended], [], [], DEADLINE_S)[0]
        pump.close()


def test_partial_lines_of_others_do_not_tear_lines_in_a_file(tmp_path: Path) -> None:
    with (
        (tmp_path / "out").open("wb") as file,
        pumping(Sink.of_descriptor(file.fileno()), b"a:", b"b:") as (pump, sources, (a, b)),
    ):
        for fd, text in ((a, b"one "), (b, b"two\nthr"), (a, b"two\nthree")):
            os.write(fd, text)
            pump.settle(sources, DEADLINE_S)
        pump.queue_lines(Sink.of_descriptor(file.fileno()), b"we\n")
        assert sources[0].tail == "one two\nthree"
    lines = (tmp_path / "out").read_bytes().splitlines()
    assert sorted(lines) == [b"a:one two", b"a:three", b"b:thr", b"b:two", b"we"]
    assert lines.index(b"b:two") < lines.index(b"a:one two")


def test_on_a_terminal_an_interrupted_line_goes_on_below() -> None:
    main, side = pty.openpty()
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            assert select.select([main], [], [], DEADLINE_S)[0], seen
            seen += os.read(main, 1000)

    with pumping(Sink.of_descriptor(side), b"a:", b"b:") as (_, _, (a, b)):
        os.write(a, b"..")
        until(b"..")
        os.write(b, b"line\n")
        until(b"line")
        os.write(a, b"!!\n")
        until(b"a:!!\r\n")
    assert seen.replace(b"\r\n", b"\n") == b"a:..\nb:line\na:!!\n"
    os.close(main)
    os.close(side)


def test_settling_reads_what_is_there_and_returns_in_time_when_the_sink_is_stuck() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while select.select([], [writer], [], 0.0)[1]:
        os.write(writer, bytes(4096))
    with pumping(Sink.of_descriptor(writer), b"a:") as (pump, sources, (a,)):
        os.write(a, b"last words\n")
        pump.settle(sources, 0.05)
        assert sources[0].tail in ("", "last words")
        seen = b""
        while select.select([reader], [], [], 0.0)[0]:  # the pump goes on meanwhile
            seen += os.read(reader, 2**20)
        pump.settle(sources, DEADLINE_S)
        assert sources[0].tail == "last words"
    os.close(writer)
    with open(reader, "rb") as file:
        seen += file.read()
    assert seen.lstrip(b"\0") == b"a:last words\n"


def test_nobody_reads_so_the_writer_is_told() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pumping(Sink.of_descriptor(writer), b"") as (pump, sources, (a,)):
        os.write(a, b"x\n")
        pump.settle(sources, DEADLINE_S)
        pump.settle(sources, DEADLINE_S)
        with pytest.raises(BrokenPipeError):
            os.write(a, b"y\n")
    os.close(writer)
