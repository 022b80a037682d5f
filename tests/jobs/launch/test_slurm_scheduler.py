"""A scheduler over Slurm's commands, where these do what no Slurm does when it is asked to."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

import pytest

from farandole.launch.leases.scheduler import Answer, CallDone, CallRefused, CallUnanswered, JobPhase, Looked, Submitted
from farandole.launch.leases.slurm import SlurmScheduler
from farandole.testing.leaks import no_leaks


def program(folder: Path, name: str, text: str) -> None:
    """Put a shell script on the ``PATH`` of ``variables``."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def variables(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def all_answers(scheduler: SlurmScheduler, count: int) -> list[Answer]:
    found: list[Answer] = []
    while len(found) < count:
        assert scheduler.deadline_s is not None, "no call is under way"
        select.select(scheduler.fds, (), (), max(0.0, scheduler.deadline_s - time.monotonic()))
        found += scheduler.answers()
    scheduler.close()
    return found


def test_without_slurm_all_is_refused(tmp_path: Path) -> None:
    scheduler = SlurmScheduler({"PATH": str(tmp_path)})
    scheduler.look("812")
    scheduler.start("812_1")
    assert scheduler.deadline_s == 0.0
    looked, started = all_answers(scheduler, 2)
    assert looked == CallRefused("look", "812", "squeue was not found, neither as a file nor on the PATH")
    assert isinstance(started, CallRefused)


def test_a_command_that_takes_too_long_is_killed_with_all_it_has_started(tmp_path: Path) -> None:
    program(tmp_path, "squeue", "sleep 1000 & wait")
    with no_leaks():
        scheduler = SlurmScheduler(variables(tmp_path), patience_s=0.2)
        scheduler.look("812")
        scheduler.set_nice("812_1", 5)
        looked, made_nice = all_answers(scheduler, 2)
    assert looked == CallUnanswered("look", "812", "it has not answered for 0.2 s")
    assert isinstance(made_nice, CallUnanswered)
    assert (made_nice.call, made_nice.subject) == ("set_nice", "812_1")


@pytest.mark.parametrize("said", ["what is this", "3|FLOATING|N/A|N/A||None"])
def test_a_look_that_is_not_understood_says_nothing_of_jobs(tmp_path: Path, said: str) -> None:
    program(tmp_path, "squeue", f"echo '{said}'")
    scheduler = SlurmScheduler(variables(tmp_path))
    scheduler.look("812")
    (answer,) = all_answers(scheduler, 1)
    assert isinstance(answer, CallUnanswered)
    assert "not understood" in answer.words


def test_a_script_comes_by_standard_input_and_the_nonce_beside_it(tmp_path: Path) -> None:
    program(tmp_path, "sbatch", f'printf "%s " "$@" > {tmp_path}/words; cat "$6" > {tmp_path}/script; echo "812;far"')
    scheduler = SlurmScheduler(variables(tmp_path))
    script = "#!/bin/sh\n" + "# x\n" * 100_000  # more than a pipe holds
    scheduler.submit(script, 3, "b1946ac9")
    assert all_answers(scheduler, 1) == [Submitted("b1946ac9", "812")]
    words = "--parsable --hold --no-requeue --kill-on-invalid-dep=yes --array=0-2 /dev/stdin b1946ac9 "
    assert (tmp_path / "words").read_text() == words
    assert (tmp_path / "script").read_text() == script


def test_what_a_lead_submits_depends_on_it_until_it_is_released(tmp_path: Path) -> None:
    for name in ("sbatch", "scontrol"):
        program(tmp_path, name, f'echo {name} "$@" >> {tmp_path}/words; echo 812')
    scheduler = SlurmScheduler({**variables(tmp_path), "SLURM_JOB_ID": "77"})
    scheduler.submit("#!/bin/sh\n", 3, "b1946ac9")
    scheduler.start("812_1")
    assert all_answers(scheduler, 2) == [Submitted("b1946ac9", "812"), CallDone("start", "812_1")]
    submit, *start = (tmp_path / "words").read_text().splitlines()
    assert "--kill-on-invalid-dep=yes --dependency=afterok:77 " in submit
    assert start == ["scontrol release 812_1", "scontrol update JobId=812_1 Dependency="]


def test_a_lease_that_starts_before_it_is_untied_has_started(tmp_path: Path) -> None:
    said = "812_1: Job is no longer pending execution"
    program(tmp_path, "scontrol", f'test $1 = release || {{ echo "{said}" >&2; exit 1; }}')
    scheduler = SlurmScheduler(variables(tmp_path))
    scheduler.start("812_1")
    assert all_answers(scheduler, 1) == [CallDone("start", "812_1")]


def test_what_was_released_by_hand_is_untied_by_the_look_that_shows_it(tmp_path: Path) -> None:
    program(tmp_path, "squeue", "echo '3|PENDING|N/A|N/A||Dependency'; echo '4|PENDING|N/A|N/A||JobHeldUser'")
    program(tmp_path, "scontrol", f'echo "$@" >> {tmp_path}/words')
    scheduler = SlurmScheduler(variables(tmp_path))
    scheduler.look("812")
    (looked,) = all_answers(scheduler, 1)
    assert isinstance(looked, Looked)
    assert [view.phase for view in looked.jobs.values()] == [JobPhase.HELD, JobPhase.HELD], "until the next look"
    assert (tmp_path / "words").read_text() == "update JobId=812_3 Dependency=\n"


def test_an_sbatch_that_says_no_number_may_have_submitted(tmp_path: Path) -> None:
    program(tmp_path, "sbatch", "echo sbatch: info: this site says hello")
    scheduler = SlurmScheduler(variables(tmp_path))
    scheduler.submit("#!/bin/sh\n", 3, "b1946ac9")
    assert all_answers(scheduler, 1) == [CallUnanswered("submit", "b1946ac9", "info: this site says hello")]


def test_a_nonce_that_is_no_word_stops_nothing_else(tmp_path: Path) -> None:
    program(tmp_path, "scancel", "")
    scheduler = SlurmScheduler(variables(tmp_path))
    with pytest.raises(ValueError, match="letters and digits"):
        scheduler.submit("#!/bin/sh\n", 3, "a b")
    scheduler.cancel("812_1")
    assert all_answers(scheduler, 1) == [CallDone("cancel", "812_1")]


def test_calls_run_one_after_the_other(tmp_path: Path) -> None:
    program(
        tmp_path, "scancel", f"mkdir {tmp_path}/one && echo $1 >>{tmp_path}/log && sleep 0.05; rmdir {tmp_path}/one"
    )
    scheduler = SlurmScheduler(variables(tmp_path))
    jobs = [f"812_{index}" for index in range(5)]
    for job in jobs:
        scheduler.cancel(job)
    assert all_answers(scheduler, 5) == [CallDone("cancel", job) for job in jobs]
    assert (tmp_path / "log").read_text().split() == jobs
