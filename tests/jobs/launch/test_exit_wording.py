"""What a failed worker's last lines call for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from farandole.launch.job.exit_wording import advice
from tests.support.launch.running import StartJob


@pytest.mark.parametrize("module", ["horovod", "horovod.torch"])
def test_a_forgotten_option(module: str) -> None:
    tail = f"Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named '{module}'"
    if module == "horovod":
        assert "add --horovod" in advice(tail, horovod=False)
        assert "farandole horovod install" in advice(tail, horovod=True)
        assert "add --horovod" not in advice(tail, horovod=True)
    else:  # there is one, but not with this module
        assert advice(tail, horovod=False) == ""
    assert advice("KeyError: 'horovod'", horovod=False) == ""


@pytest.mark.parametrize("options", [("-np", "2"), ("-np", "2", "--min-np", "2", "--reset-limit", "1")])
def test_jobs_give_it(job: StartJob, options: tuple[str, ...]) -> None:
    running = job(*options, python="import sys\nsys.path[:] = sys.path[:1]\nimport horovod.torch")
    assert running.end() != 0
    assert "add --horovod" in running.stderr


@pytest.mark.parametrize("options", [("-np", "2"), ("-np", "2", "--min-np", "2", "--reset-limit", "1")])
def test_another_python_than_that_of_farandole_is_named_once(
    job: StartJob, options: tuple[str, ...], tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.symlink_to(os.path.realpath(sys.executable))
    for python, count in ((str(other), 1), (sys.executable, 0)):
        running = job(*options, command=[python, "-c", "import a_package_of_another_environment"])
        assert running.end() == 1
        told = f"the command ran {other}, and the Python of farandole is {sys.executable}"
        assert running.stderr.count(told) == count


def test_a_traceback_is_printed_once_by_each_rank(job: StartJob) -> None:
    running = job("-np", "2", python="import os\nwhile os.environ['FARANDOLE_RANK'] == '1': pass\n1 / 0")
    assert running.end() == 1
    assert running.stderr.count("Traceback") == 1
    assert "its traceback is above, at [0]<stderr>:\n    ZeroDivisionError: division by zero\n" in running.stderr


def test_lines_of_a_job_in_a_job_name_the_stream_once(job: StartJob) -> None:
    inner = f"{sys.executable} -m farandole run -np 2 {sys.executable} -c 'print(\"in\")'"
    running = job("-np", "1", command=["bash", "-c", f"{inner}; {inner} | cat"])
    assert running.end() == 0
    assert sorted(running.stdout.splitlines()) == [
        "[0]<stdout>:[0]:in",
        "[0]<stdout>:[0]<stdout>:in",
        "[0]<stdout>:[1]:in",
        "[0]<stdout>:[1]<stdout>:in",
    ]
