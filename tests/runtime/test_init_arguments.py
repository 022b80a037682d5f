"""What ``init`` decides before it contacts anybody."""

from __future__ import annotations

import sys
import types

import pytest

from farandole.cluster.environment import Launched, Plain, variables_for
from farandole.errors import SettingsError, UsageError
from farandole.runtime.session.init_arguments import environment_of, part_of, settings_of, static_sets
from farandole.runtime.session.process_sets import ProcessSet
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
