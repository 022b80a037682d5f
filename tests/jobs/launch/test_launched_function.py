"""``farandole.launch``: returns at once; ``result``, ``stop`` and ``resize``; and cells' lines in tracebacks."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.errors import ControlError, RemoteError, UnsupportedError, UsageError
from tests.support.patience import PATIENCE_S
from tests.support.waiting import until

CELL = "/tmp/ipykernel_7/42.py"
SOURCE = "def fail(x):\n    y = 1\n    return x + nothing_of_that_name  # in line three\n"


def meet(folder: str, last: int) -> tuple[int, int]:
    """Train until ``last``; rank 0 writes its step, and waits at ten until it is told to go on."""
    import time
    from pathlib import Path

    import numpy as np

    import farandole.numpy as hvd
    from farandole.numpy.elastic import ObjectState, run

    hvd.init()

    @run
    def until(state: Any) -> tuple[int, int]:
        while state.step < last or not Path(folder, "go").exists():
            hvd.allreduce(np.ones(1), name="x", op=hvd.Sum)
            state.step += 1
            Path(folder, f"size{hvd.size()}").touch()
            state.commit()
            time.sleep(0.01)
        return state.step, hvd.size()

    return until(ObjectState(step=0))


def appears(path: Path) -> None:
    """Wait until a file is there."""
    until(path.exists, f"for {path}")


def test_a_job_grows_while_it_runs_and_stops_when_it_is_told(tmp_path: Path) -> None:
    job = farandole.launch(meet, (str(tmp_path), 20), np=1)
    try:
        assert "running" in repr(job)
        appears(tmp_path / "size1")
        with pytest.raises(TimeoutError, match="goes on"):
            job.result(timeout_s=0.01)
        job.resize(2)
        appears(tmp_path / "size2")
        with pytest.raises(UsageError, match="no worker"):
            job.resize(0)
        with pytest.raises(UnsupportedError, match="no live view"):
            _ = job.widget
    finally:
        job.stop()
    assert job.done
    assert "stopped" in repr(job)
    with pytest.raises(ControlError, match="stopped"):
        job.result()
    with pytest.raises(UsageError, match="has ended"):
        job.resize(3)
    job.stop()


def test_results_come_in_rank_order() -> None:
    captured = 40

    def rank() -> int:
        import farandole.numpy as hvd

        hvd.init()
        return captured + int(hvd.rank())

    job = farandole.launch(rank, np=2)
    assert job.result(PATIENCE_S) == [40, 41]
    assert job.result() == [40, 41]


@pytest.fixture
def fail_in_a_cell() -> Iterator[Callable[[int], Any]]:
    """A function from a cell, whose source only this process has."""
    linecache.cache[CELL] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), CELL)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE, CELL, "exec"), names)
    yield names["fail"]
    del linecache.cache[CELL]


def test_tracebacks_show_the_line_of_a_cell(fail_in_a_cell: Callable[[int], Any]) -> None:
    with pytest.raises(RemoteError) as caught:
        farandole.run(fail_in_a_cell, (4,))
    assert "return x + nothing_of_that_name  # in line three" in caught.value.traceback
    with pytest.raises(RemoteError, match="in line three"):
        farandole.launch(fail_in_a_cell, (4,)).result(PATIENCE_S)


def test_arguments_that_cannot_be_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="np=0"):
        farandole.launch(print, np=0)
    with pytest.raises(UsageError, match="no setting"):
        farandole.launch(print, colour="blue")
