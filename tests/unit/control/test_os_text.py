"""Texts with bytes that are no UTF-8, in messages."""

from __future__ import annotations

import os

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from farandole.control import messages, monitor_messages
from farandole.control.agent_messages import StartWorkers, WorkerSpec
from farandole.control.monitor_messages import MonitorConfig, MonitorEnd
from farandole.control.os_text import legible, pack, unpack
from farandole.control.watch_messages import MetricPoint, Metrics
from farandole.launch.agents.agent_config import LaunchedAgentConfig

LATIN = os.fsdecode(b"M\xfcller")
names = st.binary(max_size=8).map(os.fsdecode)


@given(names)
def test_programs_get_the_names_of_files_and_arguments_as_they_are(name: str) -> None:
    start = StartWorkers([WorkerSpec(0, ["train", name], {name: name})], {"A": name}, output_dir=name, cwd=name)
    assert messages.decode(messages.encode(start)) == start
    config = LaunchedAgentConfig(["tcp://a:1"], "s", start=start)
    read = msgspec.json.Decoder(LaunchedAgentConfig).decode
    assert unpack(read, pack(msgspec.json.encode, config, exact=True)) == config
    asked = MonitorConfig(name, [name], certificate=name)
    assert monitor_messages.decode_line(monitor_messages.encode_line(asked)) == asked


def test_people_get_texts_that_every_program_can_write() -> None:
    assert legible(LATIN) == "M\\udcfcller"
    assert legible("Müller") == "Müller"
    said = Metrics(1, [MetricPoint(0.0, 1, 1, {LATIN: 1.0})], [(0.0, LATIN)], 0)
    assert messages.decode(messages.encode(said)) == Metrics(
        1, [MetricPoint(0.0, 1, 1, {"M\\udcfcller": 1.0})], [(0.0, "M\\udcfcller")], 0
    )
    end = monitor_messages.decode_line(monitor_messages.encode_line(MonitorEnd(1, LATIN)))
    assert end == MonitorEnd(1, "M\\udcfcller")
