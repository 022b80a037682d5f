"""Runs side by side: the numbers of their table, and the curves that are over each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.control.watch_messages import MetricPoint
from farandole.errors import UsageError
from farandole.monitor.comparison import differences, names_of, overlaid
from farandole.monitor.folder import MemberRecord, PointRecord, RunInfo, RunWriter


def recorded(folder: Path, began_s: float, losses: list[list[float]], seed: str = "1", search: bool = False) -> Path:
    """A run whose ranks have logged these losses, one each second from step 0 on, and how right they were."""
    info = RunInfo(began_s, ["python", "train.py"], versions={"torch": "2.13"}, seeds={"--seed": seed})
    info.search = {"trials": 4, "epochs": 1} if search else {}
    with RunWriter.create(folder, info) as writer:
        writer.append(MemberRecord(began_s, 1, ["a"] * len(losses)))
        for rank, values in enumerate(losses):
            points = [
                MetricPoint(began_s + step, step, 0, {"loss": loss, "acc": 1 - loss})
                for step, loss in enumerate(values)
            ]
            writer.append(PointRecord(rank, 1, points))
        writer.info.status, writer.info.ended_s = 0, began_s + 90
        writer.describe()
    return folder


def test_runs_differ_in_what_is_not_the_same_and_in_their_last_and_best_numbers(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a", 1000.0, [[0.5, 0.25, 0.75], [1.0, 0.5, 0.5]])
    b = recorded(tmp_path / "b", 5000.0, [[0.5, 0.125]], seed="2")
    assert differences([a, b]) == [
        ("lasted", ["0:01:30", "0:01:30"]),
        ("end", ["well", "well"]),
        ("--seed", ["1", "2"]),
        ("last loss", ["0.625", "0.125"]),
        ("lowest loss", ["0.375 (step 1)", "0.125 (step 1)"]),
        ("last acc", ["0.375", "0.875"]),
        ("highest acc", ["0.625 (step 1)", "0.875 (step 1)"]),
    ]


def test_each_run_is_the_mean_of_its_ranks_from_its_own_beginning(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a", 1000.0, [[0.5, 0.25, float("nan")], [1.0, 0.5, 0.5]])
    b = recorded(tmp_path / "b", 5000.0, [[0.5, 0.125]])
    snapshot = list(overlaid([a, b]).snapshot(()))
    told = {each["rank"]: each for each in snapshot if each["t"] == "curve" and each["name"] == "loss"}
    curves = {rank: (each["s"], each["w"], each["m"]) for rank, each in told.items()}
    assert curves == {0: ([0, 1], [0.0, 1.0], [0.75, 0.375]), 1: ([0, 1], [0.0, 1.0], [0.5, 0.125])}
    [run] = [each for each in snapshot if each["t"] == "run"]
    assert run["info"]["runs"]["names"] == ["a", "b"]
    assert (run["state"], run["ended"]) == ("ended", 90.0)
    assert not [each for each in snapshot if each["t"] == "marks" and each["marks"]]


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    runs = [tmp_path / "x" / "a", tmp_path / "y" / "a"]
    assert names_of(runs) == [str(run) for run in runs]
    assert names_of([f"{tmp_path}/x/", tmp_path / "y"]) == ["x", "y"]


def test_what_cannot_be_overlaid_is_refused(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a", 1000.0, [[0.5]])
    search = recorded(tmp_path / "search", 1000.0, [[0.5]], search=True)
    with pytest.raises(UsageError, match=r"search is a search, .*: open it alone"):
        overlaid([a, search])
    with pytest.raises(UsageError, match="9 runs are too many curves in a chart: open at most 8 at once"):
        overlaid([a] * 9)
