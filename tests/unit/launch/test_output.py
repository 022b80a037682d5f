"""Output on its way from other hosts: whole, in order, never more of it than the window."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from farandole.control.agent_messages import Output, Written
from farandole.control.message import Message
from farandole.control.output import Sink
from farandole.launch.agents.output import STDERR, STDOUT, WINDOW_BYTES, JobOutput, Receipts, Wire

DEADLINE_S = 60.0


def outputs(messages: list[Message]) -> list[Output]:
    return [message for message in messages if isinstance(message, Output)]


def test_a_wire_waits_for_the_launcher_and_goes_on() -> None:
    sent: list[Message] = []
    wire = Wire(STDOUT, sent.append)
    chunk = b"x" * (WINDOW_BYTES // 2 - 1) + b"\n"
    writer = threading.Thread(target=lambda: [wire.write(chunk) for _ in range(4)])
    writer.start()
    while len(sent) < 2:
        time.sleep(0.001)
    for _ in range(2):
        wire.written(len(chunk))
    writer.join(DEADLINE_S)
    assert [message.text for message in outputs(sent)] == [chunk] * 4
    assert not wire.idle
    for _ in range(2):
        wire.written(len(chunk))
    assert wire.idle


def test_a_line_larger_than_the_window_is_one_message() -> None:
    sent: list[Message] = []
    wire = Wire(STDERR, sent.append)
    assert wire.write(b"y" * 3 * WINDOW_BYTES)
    assert sent == [Output(STDERR, b"y" * 3 * WINDOW_BYTES)]


def test_a_wire_that_is_cut_takes_no_more_and_is_waited_for_no_longer() -> None:
    sent: list[Message] = []
    wire = Wire(STDOUT, sent.append)
    assert wire.write(b"z" * WINDOW_BYTES)
    told: list[bool] = []
    writer = threading.Thread(target=lambda: told.append(wire.write(b"z")))
    writer.start()
    wire.cut()
    writer.join(DEADLINE_S)
    assert told == [False]
    assert len(sent) == 1
    assert wire.idle


def test_what_comes_from_hosts_is_written_and_acknowledged(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        _write_to(JobOutput([Sink.of_descriptor(out.fileno()), Sink.of_descriptor(err.fileno())]))
    assert (tmp_path / "out").read_bytes() == b"[0]<stdout>:one\n[1]<stdout>:four\n"
    assert (tmp_path / "err").read_bytes() == b"[1]<stderr>:two\n[1]<stderr>:three\n"


def _write_to(output: JobOutput) -> None:
    receipts = Receipts(output)
    output.start()
    receipts.queue_output("a", Output(STDOUT, b"[0]<stdout>:one\n"))
    receipts.queue_output("b", Output(STDERR, b"[1]<stderr>:two\n[1]<stderr>:three\n"))
    receipts.queue_output("b", Output(STDOUT, b"[1]<stdout>:four\n"))
    assert output.close(DEADLINE_S)
    assert sorted(receipts.collect(), key=str) == [
        ("a", Written(STDOUT, 16)),
        ("b", Written(STDOUT, 17)),
        ("b", Written(STDERR, 34)),
    ]
    os.close(receipts.fd)
