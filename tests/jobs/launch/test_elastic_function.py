"""``farandole.run`` with workers that come and go."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import farandole
from farandole.errors import ControlError, RemoteError, UsageError

QUICK: dict[str, Any] = {"blacklist_cooldown_range": (0.0, 0.1)}


def test_a_killed_worker_is_replaced_and_the_results_are_of_those_that_finish(
    capfd: pytest.CaptureFixture[str],
) -> None:
    captured = {"base": 100}

    def train(number: int, *, factor: int) -> tuple[int, int, int, int]:
        import numpy as np

        from farandole.collective import ReduceOp
        from farandole.elastic.worker.run import run
        from farandole.elastic.worker.state import ObjectState
        from farandole.runtime.session.init import current, init, shutdown
        from workbench.jobs import NumpyCalls

        worker_id = int(os.environ["FARANDOLE_WORKER_ID"])
        assert "FARANDOLE_CALLER" not in os.environ

        @run
        def until_somebody_new_is_there(state: Any) -> tuple[int, int]:
            newest = np.zeros(1, np.int64)
            while newest[0] < 3:
                newest[0] = worker_id
                NumpyCalls().allreduce("newest", newest, ReduceOp.MAX)
                state.step += 1
                if state.step == 5 and worker_id == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                state.commit()
            return current().topology.rank, current().topology.size

        init()
        rank, size = until_somebody_new_is_there(ObjectState(step=0))
        shutdown()
        return captured["base"] + number * factor, worker_id, rank, size

    found = farandole.run(train, (2,), {"factor": 3}, np=3, min_np=2, **QUICK)
    assert found == [(106, 0, 0, 3), (106, 2, 1, 3), (106, 3, 2, 3)]
    assert "worker 1 on" in capfd.readouterr().err


def test_who_is_done_early_has_a_result_as_well() -> None:
    def train() -> tuple[str, int]:
        from farandole.elastic.worker.run import run
        from farandole.elastic.worker.state import ObjectState
        from farandole.runtime.collectives.basics import barrier, rank
        from farandole.runtime.session.init import init

        @run
        def until_one_is_left(state: ObjectState) -> tuple[str, int]:
            from farandole.runtime.collectives.basics import size

            barrier()
            while size() > 1:
                if rank() == 1:
                    return os.environ["FARANDOLE_WORKER_ID"], rank()
                state.commit()
                barrier()
            return os.environ["FARANDOLE_WORKER_ID"], rank()

        init()
        return until_one_is_left(ObjectState())

    assert farandole.run(train, np=3, min_np=1) == [("0", 0), ("1", 1), ("2", 1)]


def test_an_exception_that_all_raise_is_raised_again(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        from farandole.runtime.session.init import init

        init()
        raise KeyError("no such key")

    with pytest.raises(RemoteError, match=r"raised KeyError: 'no such key'(.|\n)*in fails") as caught:
        farandole.run(fails, np=2, min_np=1, **QUICK)
    assert isinstance(caught.value.__cause__, KeyError)
    capfd.readouterr()


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: os._exit(0), "returned nothing"),
        (lambda: os.kill(_launcher(), signal.SIGKILL), "the launcher was killed by SIGKILL"),
    ],
    ids=["killed", "nothing", "launcher"],
)
def test_a_job_without_results_says_why(ends: Callable[[], Any], says: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ControlError, match=says):
        farandole.run(ends, np=1, min_np=1, **QUICK)
    capfd.readouterr()


def _launcher() -> int:
    """The parent of the agent."""
    with open(f"/proc/{os.getppid()}/stat") as file:
        return int(file.read().rpartition(") ")[2].split()[1])


def test_what_cannot_be_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="--max-np 1 is less than --min-np 2"):
        farandole.run(print, min_np=2, max_np=1)
    with pytest.raises(UsageError, match="-np 4 is not between"):
        farandole.run(print, np=4, min_np=1, max_np=2)
    with pytest.raises(UsageError, match="no such program"):
        farandole.run(print, host_discovery_script="./none")


def test_more_workers_than_slots_are_waited_for_as_long_as_was_said(capfd: pytest.CaptureFixture[str]) -> None:
    def waits() -> None:
        from farandole.runtime.session.init import init

        init()

    with pytest.raises(ControlError, match="the job needs 2"):
        farandole.run(waits, hosts="localhost:1", min_np=2, elastic_timeout_s=0.2, start_timeout_s=20)
    capfd.readouterr()
