"""Functions on workers that real clusters lend: Ray, Dask and Spark, each on this machine.

Each plays the scenarios once, in a process of its own; the tests look at what they have seen.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest

from tests.support.launching import run_to_end
from tests.support.paths import ROOT

PACKAGES = {"ray": "ray", "dask": "distributed", "spark": "pyspark"}
NAMES = {"ray": "Ray", "dask": "Dask", "spark": "Spark"}
HERE = socket.gethostname()


class Played(NamedTuple):
    """What was seen on a cluster, by scenario, and what it printed."""

    cluster: str
    seen: Mapping[str, Mapping[str, Any]]
    stdout: str
    stderr: str


@pytest.fixture(scope="module", params=list(PACKAGES))
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """All scenarios, played on one of the clusters; skips where it cannot be had."""
    cluster = request.param
    if find_spec(PACKAGES[cluster]) is None:
        pytest.skip(f"{PACKAGES[cluster]} is not installed: make {'spark' if cluster == 'spark' else 'setup'}")
    if cluster == "spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java: apt-get install openjdk-17-jre-headless")
    folder = tmp_path_factory.mktemp(cluster)
    command = [sys.executable, "-m", f"tests.support.clusters.on_{cluster}"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = run_to_end(command, folder, 240.0, {"PYTHONPATH": path})
    done.ok()
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
    return Played(cluster, {line["scenario"]: line for line in lines}, done.stdout, done.stderr)


def test_ranks_know_their_places_and_compute_together(played: Played) -> None:
    first, second = played.seen["returns"]["results"]
    assert first["total"] == second["total"] == 12.0
    assert first["colour"] == second["colour"] == "blue"
    if played.cluster == "ray":  # two nodes of one slot
        assert [first["places"], second["places"]] == [[0, 2, 0, 1, 0, 2], [1, 2, 0, 1, 1, 2]]
    else:
        assert [first["places"], second["places"]] == [[0, 2, 0, 2, 0, 1], [1, 2, 1, 2, 0, 1]]


def test_output_of_ranks_is_shown_with_their_ranks(played: Played) -> None:
    assert {"[0]<stdout>:line of rank 0", "[1]<stdout>:line of rank 1"} <= set(played.stdout.splitlines())


def test_the_secret_of_a_run_is_in_its_workers_alone(played: Played) -> None:
    assert [each["key_seen_in"] for each in played.seen["returns"]["results"]] == [[], []]
    assert "secret=" not in played.stderr


def test_an_exception_ends_all_ranks_and_comes_back_with_its_traceback(played: Played) -> None:
    seen = played.seen["raises"]
    assert seen["error"] == "RemoteError"
    host = f"{HERE}~2" if played.cluster == "ray" else HERE
    assert seen["text"].startswith(f"rank 1 on {host} raised KeyError: 'no such key'\n")
    assert "in fails_on_one" in seen["text"]
    assert seen["left"] == []


def test_a_slot_that_is_killed_ends_the_run(played: Played) -> None:
    seen = played.seen["loses_a_slot"]
    assert seen["error"] == "ControlError"
    assert seen["text"].startswith(f"slot 0 of {NAMES[played.cluster]} on {HERE} is gone: ")
    assert seen["left"] == []
    assert seen["raised_s"] < 60


@pytest.mark.parametrize("scenario", ["is_interrupted", "is_interrupted_elastic"])
def test_ctrl_c_ends_all_workers(played: Played, scenario: str) -> None:
    seen = played.seen[scenario]
    assert seen["interrupted"]
    assert seen["left"] == []


def test_slots_that_there_are_not_are_refused_or_given_up(played: Played) -> None:
    seen, name = played.seen["lacks_slots"], NAMES[played.cluster]
    if played.cluster == "dask":  # which knows at once
        assert seen["error"] == "UsageError"
        assert "np=3 asks for more workers than Dask's workers have threads: 2 workers with 2" in seen["text"]
    else:
        assert seen["error"] == "ControlError"
        assert seen["text"].startswith(f"0 of 3 slots of {name} have come within 2 s: ")
    assert played.seen["is_none"]["error"] == "UsageError"
    assert f"{name} reports its slots itself" in played.seen["is_discovered"]["text"]


def test_an_elastic_training_goes_on_where_a_slot_is_killed(played: Played) -> None:
    wanted = [2, 1, 2] if played.cluster == "ray" else [2]  # the others have one node, which is lost as a whole
    results = played.seen["trains_on"]["results"]
    assert results
    assert all(sizes[-len(wanted) :] == wanted for sizes in results)


def test_importing_it_imports_no_framework(played: Played) -> None:
    assert played.seen["loaded"] == {"scenario": "loaded", "torch": False}


def test_horovods_names_for_it(played: Played) -> None:
    if played.cluster == "dask":
        pytest.skip("Horovod has nothing for Dask")
    seen = played.seen["horovod"]
    if played.cluster == "spark":
        assert seen["run"] == [[1, "0", "blue", "0.28.1"], [1, "1", "blue", "0.28.1"]]
        assert seen["one"] == [[2, "0", "red", "0.28.1"]]
        assert seen["stdout"]["error"] == "UnsupportedError"
        assert sorted(seen["elastic"]) == [[3, "0", "green", "0.28.1"], [3, "1", "green", "0.28.1"]]
        assert "-np 1 is not between --min-np 2" in seen["too_few"]["text"]
        return
    assert seen["counted"] == [[12, 13], [14, 15]]
    assert seen["single"] == 14
    assert seen["run"] == [[1, 2, "blue"]] * 2
    assert seen["remote"] == ["2", "2"]
    assert "raised ZeroDivisionError" in seen["error"]["text"]
    assert seen["after"] == ["here", "here"]
    assert "call start() first" in seen["shut"]["text"]
    assert seen["elastic"]["error"] == seen["elastic_executor"]["error"] == "UnsupportedError"
    assert seen["hosts"] == ["0", "1"]


def test_threads_of_dask_that_are_busy_are_given_up(played: Played) -> None:
    if played.cluster != "dask":
        pytest.skip("Ray and Spark are asked for more slots than there are")
    assert " of 2 slots of Dask have come within 2 s: other tasks keep threads" in played.seen["busy"]["text"]
    assert played.seen["free_again"]["results"] == [0, 0]
