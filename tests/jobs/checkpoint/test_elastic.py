"""Sharded checkpoints of elastic jobs: who is lost while one is written costs that one, and nobody else's life."""

from __future__ import annotations

from pathlib import Path

from farandole.checkpoint import folder
from tests.support.launching import Launch

TRAINING = """
    import os, pathlib, signal, sys, threading
    import numpy as np
    from farandole.collective import ReduceOp
    from farandole.elastic.worker import run as worker_run
    from farandole.elastic.worker.run import run
    from farandole.elastic.worker.state import ObjectState
    from farandole.numpy.checkpoints import Checkpoints, NumpyCodec
    from farandole.runtime.session.init import current, init, shutdown
    from farandole.runtime.session.session_end import SessionEnd
    from workbench.jobs import NumpyCalls

    STEP, LAST = 5, 12
    me = int(os.environ["FARANDOLE_WORKER_ID"])
    dump, leave = NumpyCodec.dump, SessionEnd.leave_for_good
    left, writing = threading.Event(), threading.Event()

    def dies(self, content, file):
        if me == 1 and content["tensors"] and current().generation == 1 and state.step == STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        if content["tensors"]:
            writing.set()
        dump(self, content, file)

    def begun():  # or it has ended before that, as the other one was lost
        while not writing.wait(0.01) and any(each.name == "farandole-checkpoint" for each in threading.enumerate()):
            pass

    {fault}

    init()
    checkpoints = Checkpoints("saved", sharded=True, keep=0)

    @run
    def train(state):
        while state.step < LAST:
            NumpyCalls().allreduce("step", np.ones(1, np.int64), ReduceOp.SUM)
            state.step += 1
            writing.clear()
            checkpoints.save(state.step, {{"step": state.step, "w": np.ones(4), "v": np.ones(4)}})
            {after_save}
            state.commit()

    state = ObjectState(step=0)
    try:
        train(state)
        checkpoints.close()
        print("worker", me, "has finished", flush=True)
    except SystemExit:
        checkpoints.save(1000 + me, {{"step": state.step, "w": np.ones(4), "v": np.ones(4)}})
        checkpoints.close()
        pathlib.Path(f"told-{{me}}").touch()
        raise
"""

KILLED = "NumpyCodec.dump = dies"

TOLD_BEFORE_IT_JOINS = """
    NumpyCodec.dump = dies

    def joins(*_):
        signal.raise_signal(signal.SIGTERM)
    if me == 2:
        worker_run.rejoin = joins
"""

LEAVES = """
    def waits(self, content, file):
        writing.set()
        if me == 1 and not left.is_set() and state.step == STEP:
            left.wait(1.0)  # if it goes before this is written, it goes now
        dump(self, content, file)
    NumpyCodec.dump = waits

    def tells(self):
        leave(self)
        left.set()
    SessionEnd.leave_for_good = tells
"""

TOLD = """if me == 1 and state.step == STEP:
                writing.wait()
                signal.raise_signal(signal.SIGTERM)"""


def test_the_others_go_on_when_a_worker_is_lost_while_a_checkpoint_is_written(launch: Launch, tmp_path: Path) -> None:
    after = "begun()"  # for the fault, which asks what step it is
    script = TRAINING.format(fault=KILLED, after_save=after)
    done = launch(2, script, options=["--min-np", "1"])
    assert done.code == 0, done.stderr
    assert "worker 0 has finished" in done.stdout
    assert "was not written" in done.stderr
    assert folder.steps(tmp_path / "saved")[0] == 12
    assert list(folder.unfinished(tmp_path / "saved")) == []


def test_a_worker_that_is_told_to_end_before_it_joins_has_nothing_to_save(launch: Launch, tmp_path: Path) -> None:
    after = """begun()
            while state.step == LAST and not pathlib.Path("told-2").exists():
                threading.Event().wait(0.01)"""
    script = TRAINING.format(fault=TOLD_BEFORE_IT_JOINS.strip("\n").removeprefix("    "), after_save=after)
    done = launch(2, script, options=["--min-np", "1"])
    assert done.code == 0, done.stderr
    assert (tmp_path / "told-2").exists(), done.stderr
    assert folder.steps(tmp_path / "saved")[0] == 12, "a model that has not been trained"
    assert list(folder.unfinished(tmp_path / "saved")) == []


def test_a_worker_that_is_told_to_end_first_writes_its_share(launch: Launch, tmp_path: Path) -> None:
    script = TRAINING.format(fault=LEAVES.strip("\n").removeprefix("    "), after_save=TOLD)
    done = launch(2, script, options=["--min-np", "1"])
    assert done.code == 0, done.stderr
    assert "was not written" not in done.stderr
    steps = folder.steps(tmp_path / "saved")
    assert set(range(1, 13)) <= set(steps), done.stderr
    assert len(folder.read_manifest(folder.folder_of(tmp_path / "saved", 5)).shards) == 2
    assert list(folder.unfinished(tmp_path / "saved")) == []
