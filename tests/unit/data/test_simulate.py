"""Bytes and times that a plan foretells, its table and its picture; and schedules of a job that never is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.data.planning.picture import picture
from farandole.data.planning.plan import HostSpec, StagingPlan, plan
from farandole.data.planning.simulate import (
    StagingRates,
    crossing_share,
    duration,
    foretell,
    readable,
    table,
)
from farandole.errors import UsageError
from workbench.data import schedules

GB = 10**9


def planned(pieces: int = 100, hosts: int = 4, room: float = 0.3, size: int = GB) -> StagingPlan:
    """Equal pieces on equal hosts, each with room for that part of the data."""
    return plan([size] * pieces, [HostSpec(f"host{n:02}", int(room * pieces * size)) for n in range(hosts)])


def test_storage_that_all_share_is_the_limit() -> None:
    foretold = foretell(planned(), StagingRates(shared=GB, host=10 * GB), epochs=3, window=8)
    assert foretold.staged_s == pytest.approx(100)
    assert foretold.alone_s == pytest.approx(400)
    assert 8 <= foretold.first_batch_s < 9
    assert foretold.shared_bytes == 100 * GB
    assert foretold.receives.sum() == 0
    assert foretold.reads.tolist() == [25 * GB] * 4


def test_links_are_the_limit_of_fast_storage() -> None:
    foretold = foretell(planned(), StagingRates(shared=100 * GB, host=GB))
    assert foretold.staged_s == pytest.approx(25)
    everywhere = foretell(planned(room=1.0), StagingRates(shared=100 * GB, host=GB))
    assert everywhere.staged_s == pytest.approx(100)
    assert everywhere.receives.tolist() == [75 * GB] * 4
    assert everywhere.peer_bytes == 0


def test_a_host_that_reads_more_goes_on_alone() -> None:
    hosts = [HostSpec("a", 90), HostSpec("b", 10)]
    foretold = foretell(plan([10] * 10, hosts), StagingRates(shared=10, host=8), window=100)
    assert foretold.reads.tolist() == [90, 10]
    assert foretold.first_batch_s == pytest.approx(2 + 80 / 8)


def test_what_streams_is_read_in_every_epoch() -> None:
    staging = planned(room=0.125)
    foretold = foretell(staging, StagingRates(shared=GB, host=10 * GB), epochs=4)
    assert staging.streamed_bytes == 52 * GB
    assert foretold.shared_bytes == 100 * GB + 3 * 52 * GB
    assert foretold.staged_s == pytest.approx(48)


def test_a_warm_restart_takes_no_time() -> None:
    first = planned()
    warm = plan(
        first.sizes, [HostSpec(n, 30 * GB, np.flatnonzero(first.copies[:, h])) for h, n in enumerate(first.names)]
    )
    foretold = foretell(warm, StagingRates(GB, GB), epochs=50)
    assert (foretold.shared_bytes, foretold.first_batch_s, foretold.staged_s) == (0, 0, 0)


def test_few_rows_cross_and_none_of_two_copies() -> None:
    assert 0.03 < crossing_share(planned(400, room=0.3), 64) <= 0.06
    assert crossing_share(planned(400, room=0.6), 64) <= 0.001
    assert crossing_share(planned(400, room=0.1), 64) <= 0.06
    assert crossing_share(plan([], [HostSpec("a", 1)]), 64) == 0


@settings(max_examples=25)
@given(st.integers(1, 12), st.integers(1, 40), st.floats(0, 3))
def test_tables_are_narrow_and_say_all_hosts(pieces: int, hosts: int, room: float) -> None:
    staging = planned(pieces, hosts, room)
    lines = table(staging, foretell(staging, StagingRates(GB, GB), epochs=1000))
    assert max(map(len, lines)) <= 80
    named = sum(line.startswith("host") and line[4].isdigit() for line in lines)
    assert named == hosts if hosts <= 24 else f"and {hosts - named} more" in lines[-1]


def test_the_table() -> None:
    staging = planned(hosts=2, room=0.4)
    lines = table(staging, foretell(staging, StagingRates(GB, 10 * GB), epochs=50))
    assert lines[:5] == [
        "100 GB in 100 pieces on 2 hosts",
        "",
        "copies of each piece             1   2 hosts, 40.0 GB of cache each",
        "kept in caches             80.0 GB   of different pieces",
        "read again in each epoch   20.0 GB   caches are too small for it",
    ]
    assert lines[5] == "read from shared storage   1.08 TB   in 50 epochs (cp on each host: 200 GB)"
    assert lines[-2:] == [
        "host00    40.0 GB    40.0 GB    50.0 GB        0 B        0 B",
        "host01    40.0 GB    40.0 GB    50.0 GB        0 B        0 B",
    ]


@pytest.mark.parametrize(("hosts", "room"), [(4, 0.1), (4, 0.6), (40, 1.0), (1, 1.0), (3, 0.0)])
def test_a_picture_is_drawn(hosts: int, room: float, tmp_path: Path) -> None:
    staging = planned(hosts=hosts, room=room)
    figure = picture(staging, foretell(staging, StagingRates(GB, GB), epochs=hosts), tmp_path / "plan.png")
    assert figure.get_suptitle().startswith(f"100 GB on {hosts} host")
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert len(figure.axes) == 3


def test_units() -> None:
    assert [readable(n) for n in (0, 999, 1000, 9996, 99_960, 999_400, 999_600, 2 * 10**11, 3 * 10**21)] == [
        "0 B", "999 B", "1.00 kB", "10.0 kB", "100 kB", "999 kB", "1.00 MB", "200 GB", "3000 EB",
    ]  # fmt: skip
    assert [duration(s) for s in (0, 59.94, 119, 120, 7000, 7200, 360_000)] == [
        "0.0 s", "59.9 s", "119.0 s", "2.0 min", "117 min", "2.0 h", "100 h",
    ]  # fmt: skip


def test_rates_of_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="both must be above 0"):
        foretell(planned(), StagingRates(0, GB))


def test_schedules_have_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert schedules.main(["--number", "40", "--seed", "100"]) == 0
    assert capsys.readouterr().out.startswith("40 schedules, no fault: ")


def test_a_fault_is_found_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan that has every host read what it keeps, as rank-strides do when workers come and go."""

    def forgetful(sizes: list[int], hosts: list[HostSpec]) -> StagingPlan:
        return plan(sizes, [HostSpec(host.name, host.capacity) for host in hosts if not host.leaving])

    monkeypatch.setattr(schedules, "plan", forgetful)
    assert schedules.main(["--number", "40"]) == 1
    said = capsys.readouterr().out
    assert "who holds it, who reads it: python -m workbench.data.schedules --number 1 --seed " in said
    assert schedules.main(["--number", "1", "--seed", said.split()[-1]]) == 1
