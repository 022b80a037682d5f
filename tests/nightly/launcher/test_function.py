"""``farandole.run``: results in rank order, errors with the remote traceback, nothing left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.errors import ControlError, RemoteError, SettingsError, UsageError
from tests.support.patience import PATIENCE_S


def test_results_come_in_rank_order_with_arguments_and_closures(tmp_path: Path) -> None:
    captured = {"base": 100}

    def add(number: int, *, factor: int) -> tuple[int, str, int]:
        return captured["base"] + number * factor, os.environ["COLOUR"], int(os.environ["FARANDOLE_RANK"])

    found = farandole.run(add, (2,), {"factor": 3}, np=3, env={"COLOUR": "blue"}, output_filename=str(tmp_path))
    assert found == [(106, "blue", 0), (106, "blue", 1), (106, "blue", 2)]
    assert "COLOUR" not in os.environ


def test_workers_find_what_the_caller_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "next_to_the_script.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import next_to_the_script  # type: ignore[import-not-found]

    assert farandole.run(next_to_the_script.double, (21,)) == [42]


def test_an_exception_is_raised_again_from_the_original_with_the_remote_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fails_on_one() -> None:
        if os.environ["FARANDOLE_RANK"] == "1":
            raise KeyError("no such key")
        signal.pause()

    with pytest.raises(
        RemoteError, match=r"rank 1 on .* raised KeyError: 'no such key'(.|\n)*in fails_on_one"
    ) as caught:
        farandole.run(fails_on_one, np=2)
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.__cause__.args == ("no such key",)
    assert "task.py" not in caught.value.traceback
    assert "[1]<stderr>:KeyError: 'no such key'" in capfd.readouterr().err


def test_the_exception_of_the_rank_that_left_first_is_raised(tmp_path: Path) -> None:
    def tidies_up_and_takes_its_time() -> None:
        from farandole.runtime.collectives.basics import barrier, rank
        from farandole.runtime.session.init import init, shutdown

        init()
        (tmp_path / str(rank())).write_text(str(os.getpid()))
        barrier()
        other = os.pidfd_open(int((tmp_path / "0").read_text()))
        barrier()
        try:
            if rank() == 1:
                raise KeyError("no such key")
            barrier()
        finally:
            first = rank() == 1
            shutdown()
            if first:
                select.select([other], [], [], 20)

    with pytest.raises(RemoteError, match=r"rank 1 on .* raised KeyError"):
        farandole.run(tidies_up_and_takes_its_time, np=2, grace_s=30)


def test_an_exception_that_cannot_be_unpickled_still_tells_its_story(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        class StubbornError(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__(f"{one} and {two}")

        raise StubbornError(1, 2)

    with pytest.raises(RemoteError, match="StubbornError: 1 and 2") as caught:
        farandole.run(fails)
    assert caught.value.__cause__ is None
    capfd.readouterr()


def test_the_death_of_a_rank_is_told_and_not_that_another_one_has_missed_it() -> None:
    def train() -> None:
        import farandole.numpy as hvd

        hvd.init()
        hvd.barrier()
        if hvd.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    with pytest.raises(ControlError, match=r"rank 0 on .* was killed by SIGKILL"):
        farandole.run(train, np=2)


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: os._exit(0), r"ranks \[0\] ended well but returned nothing"),
    ],
)
def test_a_worker_that_ends_without_a_result(ends: Callable[[], Any], says: str) -> None:
    with pytest.raises(ControlError, match=says):
        farandole.run(ends)


@pytest.mark.parametrize("how", ["static", "elastic", "launch"])
def test_arguments_and_results_may_be_large(how: str) -> None:
    large = os.urandom(2**20) * 130
    if how == "launch":
        [found] = farandole.launch(lambda value: value[::-1], (large,), np=1).result(PATIENCE_S)
    else:
        options: dict[str, Any] = {"min_np": 1} if how == "elastic" else {}
        [found] = farandole.run(lambda value: value[::-1], (large,), np=1, **options)
    assert found == large[::-1]


def test_a_result_that_cannot_be_pickled(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RemoteError, match="pickle"):
        farandole.run(lambda: (number for number in range(3)))
    capfd.readouterr()


def test_bad_input_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="np=0"):
        farandole.run(print, np=0)
    with pytest.raises(SettingsError, match=r"engin .* did you mean engine\?"):
        farandole.run(print, engin="shm")


def test_one_function_in_many_jobs_of_one_process() -> None:
    assert [farandole.run(os.getpid, np=2)[0] != os.getpid() for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("engine", ["shm", "tcp"])
def test_the_function_trains_with_the_engine_that_was_asked_for(engine: str) -> None:
    pytest.importorskip("torch")

    def train() -> tuple[str, list[float], int]:
        import torch

        import farandole.torch as hvd

        hvd.init()
        total = hvd.allreduce(torch.tensor([1.0, hvd.rank()]), op=hvd.Sum, name="total")
        gathered = hvd.allgather(torch.ones(hvd.rank() + 1, 2))
        model = torch.nn.Linear(4, 2)
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((3, 4), float(hvd.rank() + step))).sum().backward()
            optimizer.step()
        weights = hvd.allgather_object([p.detach().tolist() for p in model.parameters()])
        assert weights[0] == weights[1]
        return hvd.statistics()["engine"], total.tolist(), len(gathered)

    assert farandole.run(train, np=2, engine=engine) == [(engine, [2.0, 1.0], 3)] * 2


@pytest.mark.parametrize("asked", ["np=2", "np=2, min_np=1"], ids=["static", "elastic"])
def test_an_interrupt_ends_the_workers_and_reaches_the_caller(tmp_path: Path, asked: str) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(
        f"""
import os, signal, farandole

def works_for_ever():
    print("pid", os.getpid(), flush=True)
    signal.pause()

try:
    farandole.run(works_for_ever, {asked})
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().strip() == "interrupted"
        assert process.wait(PATIENCE_S) == 0
    for pid in pids:
        assert not os.path.exists(f"/proc/{pid}")


def test_workers_of_an_interrupted_job_have_nothing_to_say(tmp_path: Path) -> None:
    """They wait for each other, and would tell that they have lost the controller if that ended before them."""
    script = tmp_path / "interrupted.py"
    script.write_text(
        """
import os, signal, farandole

def waits():
    from farandole.runtime.collectives.basics import barrier, init, rank
    init()
    barrier()
    print("pid", os.getpid(), flush=True)
    if rank():
        signal.pause()
    barrier()

try:
    farandole.run(waits, np=3)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    )
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().strip() == "interrupted"
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE_S) == 0
    for pid in pids:
        assert not os.path.exists(f"/proc/{pid}")


def test_a_task_is_started_by_run_and_by_nobody_else() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "from farandole.launch.function.task import main; main()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "farandole.run(), which starts it" in found.stderr
