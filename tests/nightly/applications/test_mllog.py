"""Logs of MLPerf of real trainings: of two ranks, of one whose rank 0 is killed, and of one that fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farandole import cli
from farandole.monitor.mllog_rules import broken
from farandole.runtime.session.mllog import lines_of
from tests.support.launching import Launch, run_to_end
from tests.support.patience import PATIENCE_S

STATIC = """
import numpy as np
import farandole.numpy as hvd

hvd.init()
for key, value in {"train_samples": 512, "eval_samples": 64, "global_batch_size": 64, "seed": 3}.items():
    hvd.mllog(key, value)
gradients = hvd.DistributedGradients([np.zeros(3, np.float32)])
for epoch in (1, 2):
    hvd.mllog("epoch_start", epoch_num=epoch)
    gradients([np.ones(3, np.float32)])
    hvd.mllog("epoch_stop", epoch_num=epoch)
    hvd.mllog("eval_start", epoch_num=epoch)
    hvd.mllog("eval_accuracy", np.float32(0.5), epoch_num=epoch)
    hvd.mllog("eval_stop", epoch_num=epoch)
"""

ELASTIC = """
import os, signal, sys
from pathlib import Path
import numpy as np
import farandole.numpy as hvd
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState

hvd.init()
killed = Path(sys.argv[1])

@run
def train(state):
    gradients = hvd.DistributedGradients([np.zeros(3, np.float32)])
    if state.epoch == 1:
        for key, value in {"train_samples": 512, "eval_samples": 64, "global_batch_size": 64, "seed": 3}.items():
            hvd.mllog(key, value)
    while state.epoch <= 3:
        hvd.mllog("epoch_start", epoch_num=state.epoch)
        for step in range(3):
            gradients([np.ones(3, np.float32)])
            if state.epoch == 2 and step == 1 and hvd.rank() == 0 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        hvd.mllog("epoch_stop", epoch_num=state.epoch)
        hvd.mllog("eval_start", epoch_num=state.epoch)
        hvd.mllog("eval_accuracy", 0.5, epoch_num=state.epoch)
        hvd.mllog("eval_stop", epoch_num=state.epoch)
        state.epoch += 1
        state.commit()

train(ObjectState(epoch=1))
"""


def keys(path: Path) -> list[str]:
    return [line["key"] for line in lines_of(path.read_bytes())]


def test_a_training_of_two_ranks_keeps_the_rules(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "result_0.txt"
    launch(2, STATIC, options=["--mllog", str(log)]).ok()
    assert broken(log.read_bytes()) == []
    assert keys(log).count("epoch_start") == 2  # not of both ranks
    assert cli.main(["runs", "mllog-check", str(log)]) == 0
    assert cli.main(["runs", "mllog-check", "--submission", str(log)]) == 1
    assert "EXACTLY_ONE submission_org: there are 0" in capsys.readouterr().out
    again = launch(2, STATIC, options=["--mllog", str(log)])
    assert (again.code, "a log is of one run" in again.stderr) == (2, True)


def test_one_log_outlives_its_rank_0(launch: Launch, tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    options = ["--min-np", "1", "--max-np", "2", "--mllog", str(log)]
    launch(2, ELASTIC, options=options, arguments=[str(tmp_path / "killed")]).ok()
    assert (tmp_path / "killed").exists()
    assert broken(log.read_bytes()) == []
    assert keys(log).count("epoch_start") == 3
    [recovery] = [line for line in lines_of(log.read_bytes()) if line["key"] == "farandole_recovery"]
    assert recovery["metadata"]["generation"] == 2
    assert list(lines_of(log.read_bytes()))[-1]["metadata"] == {"status": "success"}


def test_a_training_that_fails_is_aborted(launch: Launch, tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    done = launch(2, STATIC + "\nraise SystemExit(3)\n", options=["--mllog", str(log)])
    assert done.code == 3
    assert list(lines_of(log.read_bytes()))[-1]["metadata"] == {"status": "aborted"}


def test_without_the_launcher_the_script_ends_the_log(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    script = STATIC + '\nhvd.mllog("run_stop", status="success")\n'
    run_to_end([sys.executable, "-c", script], tmp_path, 4 * PATIENCE_S, {"FARANDOLE_MLLOG": str(log)}).ok()
    assert broken(log.read_bytes()) == []
