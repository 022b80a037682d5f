"""Searches on three engines of IPython Parallel that are ranks: ``python -m tests.support.search.search_engines``.

They keep the contract of providers. An engine dies in a trial of two, which goes on; each trial is there once; Ctrl-C
gives the engines back, and one that hangs in a trial is interrupted, but no cell that runs on one. What cells have made
is there afterwards, and their session goes on.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any, final

import ipyparallel
import pytest

import farandole
import farandole.notebook
from farandole.errors import ControlError, UsageError
from farandole.launch.providers.provider import Provider
from farandole.notebook.engine_provider import EngineProvider
from farandole.search.api import SearchResult
from tests.support.patience import PATIENCE_S
from tests.support.search.objectives import await_file, loses_rank_1, loss, note, once, ranks
from workbench.provider import ProviderUnderTest, run_contract

SESSION = "[hvd.size(), hvd.allreduce(np.ones(1), op=hvd.Sum).item(), kept]"


def hangs(trial: Any) -> None:
    """Signal the search, and wait for what never comes; begun again, train one epoch."""
    whole = trial.folder.parent.parent
    note(whole / "began.txt", f"{trial.number} {os.getpid()}")
    if once(whole / "hung"):
        os.kill(*map(int, (whole / "signal").read_text().split()))
        signal.pause()
    print(f"trial {trial.number} trains")
    trial.report(1.0, 1)


def alone(trial: Any) -> None:
    """Train on one engine, whose variables are those of the cell."""
    from IPython import get_ipython

    assert get_ipython().user_ns["kept"] == "by a cell"
    for epoch in range(1, trial.epochs + 1):
        trial.report(loss(float(trial.parameters["x"]), epoch), epoch)


@final
class EnginesUnderTest(ProviderUnderTest):
    """Two of the engines."""

    runs_commands = False

    def __init__(self, attached: Any) -> None:
        super().__init__()
        self._attached = attached

    def provider(self, folder: Path) -> Provider:
        return EngineProvider(self._attached.client, dict(self._attached.seats[:2]))


def search(function: Any, folder: Path, pool: Any, **options: Any) -> SearchResult:
    told = {"space": {"x": (0.0, 1.0)}, "trials": 1, "workers": 1, "epochs": 1, "progress": False, **options}
    result = farandole.search(function, folder=folder, pool=pool, **told)
    assert isinstance(result, SearchResult)
    return result


def check_session(attached: Any, size: int) -> None:
    """Cells have what they had made, and all ranks take part."""
    view = attached.client[[seat.engine for seat in attached.seats]]
    attached.run(f"found = {SESSION}")
    assert view["found"] == [[size, float(size), "by a cell"]] * size, view["found"]
    assert view.apply_sync(os.getenv, "FARANDOLE_LAUNCHED") == [None] * size


def check(folder: Path, rc: Any) -> None:
    """Search four times on the engines of one client."""
    attached = farandole.notebook.attach(rc)
    attached.run("import numpy as np, farandole.numpy as hvd\nhvd.init()\nkept = 'by a cell'")
    check_session(attached, 3)
    found = run_contract(EnginesUnderTest(attached))
    assert not any(found.values()), found
    check_session(attached, 3)
    check_each_trial_once(folder / "shares", attached)
    check_session(attached, 3)
    check_interrupt(folder / "interrupted", attached)
    check_session(attached, 3)
    check_cell(folder / "cell", attached)
    check_session(attached, 3)
    check_kill(folder / "killed", attached)
    check_session(attached, 3)
    check_death(folder / "loses", attached)
    attached.replace("import numpy as np, farandole.numpy as hvd\nhvd.init()\nkept = 'by a cell'")
    check_session(attached, 3)
    assert search(alone, folder / "alone", attached, trials=3, epochs=3).is_over
    check_session(attached, 3)
    with pytest.raises(UsageError, match="no trial can have as few as 4 of 3"):
        search(alone, folder / "no", attached, workers=4)
    check_end(folder / "end", attached)


def dies(trial: Any) -> None:
    """End the engine."""
    os.kill(os.getpid(), signal.SIGKILL)


def check_end(folder: Path, attached: Any) -> None:
    """A search ends when too few engines are left, and none begins without any."""
    with pytest.raises(ControlError, match=r"ranks\.replace"):
        search(dies, folder, attached)
    assert not attached.living
    with pytest.raises(UsageError, match="no engine of these lives"):
        attached.search_pool()


def check_each_trial_once(folder: Path, attached: Any) -> None:
    """Trials of two or three engines, without a fault."""
    folder.mkdir()
    (folder / "calm").touch()
    result = search(ranks, folder, attached, trials=9, workers=(2, 3), epochs=9)
    assert result.is_over
    assert [trial.number for trial in result.trials] == list(range(9))
    pids = {seat.report.pid for seat in attached.seats}
    sizes = set()
    for trial in result.trials:
        lines = (folder / "checkpoints" / f"trial-{trial.number:04d}" / "epochs.txt").read_text().splitlines()
        told = [tuple(map(int, line.split())) for line in lines]
        assert [epoch for epoch, _, _ in told] == list(range(1, len(told) + 1)) == sorted(trial.values)
        assert {pid for _, pid, _ in told} <= pids
        sizes |= {size for _, _, size in told}
    assert sizes <= {2, 3}, sizes


def check_interrupt(folder: Path, attached: Any) -> None:
    """Ctrl-C ends the trials and not the engines, and the same call goes on."""
    folder.mkdir()
    (folder / "signal").write_text(f"{os.getpid()} {signal.SIGINT:d}")
    with pytest.raises(KeyboardInterrupt):
        search(hangs, folder, attached)
    assert search(hangs, folder, attached).trials[0].phase == "complete"
    assert "trial 0 trains" in (folder / "output" / "trial-0000.txt").read_text()
    began = (folder / "began.txt").read_text().splitlines()
    assert [line.split()[0] for line in began] == ["0", "0"]


def check_cell(folder: Path, attached: Any) -> None:
    """A search ends while a cell runs on one of its engines, which goes on: the task behind it is taken back."""
    gate, view = folder / "gate", attached.client[attached.seats[0].engine]
    waits = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.02)"
    cell = view.execute(waits, block=False)
    assert search(alone, folder, attached, trials=3, epochs=3).is_over
    assert not cell.done()
    gate.touch()
    cell.get(timeout=PATIENCE_S)


def check_kill(folder: Path, attached: Any) -> None:
    """An engine that is given up is interrupted, and its trial begins again; no engine dies of it."""
    folder.mkdir()
    (folder / "signal").write_text(f"{os.getpid()} {signal.SIGUSR1:d}")
    provider = attached.search_pool()
    pids = {seat.engine: seat.report.pid for seat in attached.seats}

    def give_up(*_: object) -> None:
        pid = int((folder / "began.txt").read_text().split()[1])
        [worker_id] = [worker_id for worker_id, task in provider._tasks.items() if pids[task.engine] == pid]
        provider.kill(socket.gethostname(), worker_id, signal.SIGINT)

    signal.signal(signal.SIGUSR1, give_up)
    assert search(hangs, folder, provider).trials[0].phase == "complete"
    assert len((folder / "began.txt").read_text().splitlines()) == 2
    assert len(attached.living) == 3


def check_death(folder: Path, attached: Any) -> None:
    """The engine of rank 1 dies: rank 0 goes on, in the same process, with the third engine."""
    result = search(loses_rank_1, folder, attached, workers=2, epochs=4, min_epochs=4)
    assert result.trials[0].phase == "complete"
    await_file(folder / "killed-rank-1")
    lines = [line.split() for line in (folder / "checkpoints" / "trial-0000" / "epochs.txt").read_text().splitlines()]
    assert [(int(epoch), int(size)) for epoch, _, size in lines] == [(1, 2), (2, 2), (3, 2), (4, 2)]
    assert len({pid for _, pid, _ in lines}) == 1
    assert len(attached.living) == 2


def main() -> None:
    """Check all; then nothing of the engines may be left."""
    with tempfile.TemporaryDirectory() as folder, ipyparallel.Cluster(n=3, log_level=40) as rc:
        check(Path(folder), rc)


if __name__ == "__main__":
    main()
