"""``farandole bench``: every number is of a checked result, and the page says what it is worth."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from farandole.cli import main
from farandole.collective import Array, DType
from farandole.engines.arrays import plain_memory
from farandole.engines.engine import Engine
from farandole.errors import EngineError
from farandole.launch.tools import bench
from farandole.launch.tools.measuring import ROUNDS, SIZES, _once
from farandole.testing.rank import RankContext
from farandole.testing.thread_engine import ThreadWorld, run_threads


def report(load: float = 0.1, lacks: dict[str, str] | None = None) -> bench.BenchReport:
    """Three engines, of rounds that differ."""
    rounds = [1e-6 * (10 + i) for i in range(ROUNDS)]
    seconds = {name: dict.fromkeys(SIZES, rounds) for name in ("shm", "mpi", "tcp")}
    considered = {"shm": "", "tcp": "rank 0 on a host with a long name cannot use it; there, " + "type this " * 12}
    return bench.BenchReport(
        ["a", "a"], load, 2, "shm", "all 2 ranks are on one host", considered, seconds, lacks or {}
    )


def test_the_table_reads_well_as_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    bench.show(report(lacks={"nccl": "this host has no NVIDIA GPU"}))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "nccl was not measured: this host has no NVIDIA GPU" in text
    assert "--engine auto takes shm: all 2 ranks are on one host" in text
    assert "busy" not in text
    [line] = [words for line in text.splitlines() if (words := line.split())[:3] == ["16", "MiB", "tcp"]]
    assert line[3:] == ["13", "us", "±12%", "1.3e+03"]


def test_a_busy_machine_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    bench.show(report(load=13.6))
    assert "busy (load 13.6 on 2 cores): these times compare little" in capsys.readouterr().out


def test_an_engine_that_does_not_sum_is_not_measured() -> None:
    world = ThreadWorld()

    def program(member: RankContext) -> float:
        engine = world.create(member.group(), member.exchange)
        array = plain_memory(4000).array(DType.FLOAT32)
        return _once(engine, array)

    assert all(seconds > 0 for seconds in run_threads(program, 2))

    class Idle(Engine):
        """Returns at once, and has moved nothing."""

        name = "idle"

        def __init__(self, inner: Engine) -> None:
            self.group = inner.group

        def allreduce(self, array: Array, *rest: object) -> None:
            ctypes.c_float.from_address(array.address).value = 2.0  # the first only

        def _none(self, *arguments: object) -> None:
            raise NotImplementedError

        allocate = allgather = broadcast = alltoall = reducescatter = barrier = abort = close = _none  # type: ignore[assignment]

    def cheat(member: RankContext) -> str:
        idle = Idle(world.create(member.group("cheat"), member.exchange))
        with pytest.raises(EngineError, match="engine idle summed 2 ones to 2 and 1"):
            _once(idle, plain_memory(4000).array(DType.FLOAT32))
        return "caught"

    assert run_threads(cheat, 2) == ["caught", "caught"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engines", "shm,warp"], "warp cannot be measured; the legal names are: shm, nccl, mpi, tcp, hybrid"),
        (["--engines", "solo"], "solo cannot be measured"),
        (["-np", "0"], "at least 2 ranks are needed"),
        (["-np", "1"], "at least 2 ranks are needed"),
    ],
)
def test_what_cannot_be_is_refused(arguments: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_engines_are_measured_in_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "bench.json"
    assert main(["bench", "--engines", "shm,hybrid,nccl", "--seconds", "0.001", "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["chosen"] == "shm"
    assert sorted(found["seconds"]) == ["hybrid", "shm"]
    assert all(len(found["seconds"]["shm"][str(nbytes)]) == ROUNDS for nbytes in SIZES)
    assert "GPU" in found["lacks"]["nccl"] or "CUDA" in found["lacks"]["nccl"]
    assert "shm" in capsys.readouterr().out
