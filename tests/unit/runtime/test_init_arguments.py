"""What ``init`` decides before it contacts anybody."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import farandole
from farandole.cluster.environment import Launched, Plain, variables_for
from farandole.errors import SettingsError, UsageError
from farandole.runtime.session.init_arguments import environment_of, part_of, settings_of, static_sets
from farandole.runtime.session.process_sets import ProcessSet
from farandole.settings import KNOBS, Settings
from farandole.topology import Topology

LAUNCHED = Launched(variables_for(Topology.of(2, ("a",) * 4, 1), "tcp://a:1", "secret"))
PLAIN = Plain({"FARANDOLE_RANK": "0", "FARANDOLE_SIZE": "1"})


def test_the_part_is_the_one_the_environment_gave() -> None:
    part = part_of(LAUNCHED, None)
    assert (part.worker_id, part.expected, part.label) == (2, 4, "")


def test_a_list_of_ranks_makes_a_smaller_job_with_a_name_of_its_own() -> None:
    part = part_of(LAUNCHED, [0, 2])
    assert (part.worker_id, part.expected) == (1, 2)
    assert part.label not in ("", part_of(LAUNCHED, [2, 0]).label)
    assert part_of(LAUNCHED, [0, 1, 2, 3]) == part_of(LAUNCHED, None)
    for comm, says in (([0, 1], "on rank 2, which is not among them"), ([2, 9], "among 0 to 3"), ([], "at least one")):
        with pytest.raises(UsageError, match=says):
            part_of(LAUNCHED, comm)
    with pytest.raises(UsageError, match="expected None, a list of ranks, or a communicator"):
        part_of(LAUNCHED, 7)


def test_the_launcher_takes_no_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as told:
        for name, value in variables_for(Topology.of(0, ("a",), 1), "tcp://a:1", "secret").items():
            told.setenv(name, value)
        told.setitem(sys.modules, "mpi4py.MPI", types.SimpleNamespace(Comm=int))
        with pytest.raises(UsageError, match="start the job with: mpirun"):
            environment_of(7)


def test_settings_of_the_whole_job_are_the_launchers() -> None:
    assert settings_of(LAUNCHED, {"bucket_bytes": 1024}).bucket_bytes == 1024
    with pytest.raises(SettingsError, match="FARANDOLE_STALL_WARNING_S for farandole run"):
        settings_of(LAUNCHED, {"stall_warning_s": 1.0})
    assert settings_of(PLAIN, {"stall_warning_s": 1.0}).stall_warning_s == 1.0


OF_THE_WORKER_TOO = {
    "bucket_bytes": "no controller lays out buckets",
    "log_level": "each process has its own log",
    "network_interface": "a worker offers its own address",
    "ports": "a worker listens for its peers, too",
    "start_timeout_s": "a worker waits so long for the controller's answer",
}
"""Settings that a worker may have otherwise than the launcher and the controller, which read them as well; and why."""


@pytest.mark.parametrize("room", ["launch", "runtime/controller", "runtime/coordination", "elastic/membership"])
def test_what_the_launcher_or_the_controller_reads_is_of_the_whole_job(room: str) -> None:
    files = (Path(farandole.__file__).parent / room).rglob("*.py")
    read = {name for file in files for name in re.findall(r"settings\.([a-z_]+)", file.read_text())}
    assert not {name for name in read & KNOBS.keys() if not KNOBS[name].job_wide} - OF_THE_WORKER_TOO.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [("across", "tcp"), ("cache_capacity", 2), ("elastic_journal", "j"), ("host_timeout_s", 9.0), ("tree_radix", 2)],
)
def test_no_setting_of_the_whole_job_is_silently_without_effect(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"set FARANDOLE_{name.upper()} for farandole run"):
        settings_of(LAUNCHED, {name: value})
    assert getattr(settings_of(LAUNCHED, {name: getattr(Settings(), name)}), name) == getattr(Settings(), name)
    assert getattr(settings_of(PLAIN, {name: value}), name) == value


def test_static_sets_are_made_of_what_a_user_gives() -> None:
    mine = ProcessSet([1])
    assert static_sets(None, 3) == static_sets("dynamic", 3) == []
    made = static_sets([mine, [2, 0]], 3)
    assert made[0] is mine
    assert made[1].ranks == [0, 2]
    with pytest.raises(UsageError, match='or "dynamic"'):
        static_sets("static", 3)
    with pytest.raises(UsageError, match="list them once"):
        static_sets([[1], [1]], 3)
    with pytest.raises(UsageError, match="are a process set already"):
        static_sets([[0, 1, 2]], 3)
    with pytest.raises(UsageError, match="does not fit a job of 3"):
        static_sets([[3]], 3)
