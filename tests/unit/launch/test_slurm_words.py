"""Words of Slurm 22.05 as they were recorded, and what they are taken for."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import UsageError
from farandole.launch.leases import slurm_words as words
from farandole.launch.leases.scheduler import CallRefused, CallUnanswered, JobPhase, JobView
from farandole.launch.leases.slurm_words import ClientReply

QUEUE = """\
7|PENDING|N/A|N/A||JobHeldAdmin
9|PENDING|N/A|N/A||JobHeldUser
0|PENDING|1795441828|1795442128||Resources
4|PENDING|N/A|N/A||(ReqNodeNotAvail, UnavailableNodes:node[1-2]|x)
3|RUNNING|1795441552|1795441852|node[01-02,7]|None
5|RUNNING|1795441552|NONE|node1|None
1|SUSPENDED|1795441702|1795441822|node1|None
6|COMPLETING|1795441702|1795441706|node1|None
N/A|RUNNING|1795441649|1795441769|node[1-2]|None
"""


def test_a_recorded_queue_is_read() -> None:
    assert words.jobs(QUEUE) == {
        7: JobView(JobPhase.BARRED, reason="JobHeldAdmin"),
        9: JobView(JobPhase.HELD, reason="JobHeldUser"),
        0: JobView(JobPhase.PENDING, starts_s=1795441828.0, reason="Resources"),
        4: JobView(JobPhase.PENDING, reason="(ReqNodeNotAvail, UnavailableNodes:node[1-2]|x)"),
        3: JobView(JobPhase.RUNNING, ("node01", "node02", "node7"), ends_s=1795441852.0, began_s=1795441552.0),
        5: JobView(JobPhase.RUNNING, ("node1",), began_s=1795441552.0),
        1: JobView(JobPhase.SUSPENDED, ("node1",), ends_s=1795441822.0, began_s=1795441702.0),
        6: JobView(JobPhase.ENDING, ("node1",), ends_s=1795441706.0, began_s=1795441702.0),
    }


@given(st.text(alphabet="0123-|,[]%: \nPENDIGRU/A."))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError, UsageError):
        assert all(isinstance(index, int) for index in words.jobs(text))


@given(st.sets(st.integers(0, 1000), min_size=1), st.integers(1, 9))
def test_jobs_of_an_array_may_share_a_line(indices: set[int], throttle: int) -> None:
    text = ",".join(map(str, sorted(indices)))
    for spelt in (text, f"{text}%{throttle}", f"[{text}]"):
        assert set(words.jobs(f"{spelt}|PENDING|N/A|N/A||JobHeldUser")) == indices


@pytest.mark.parametrize(
    ("text", "indices"),
    [("0-15%3", range(16)), ("0-2,4,7-15", [0, 1, 2, 4, *range(7, 16)]), ("1-9:4", [1, 5, 9]), ("3", [3])],
)
def test_recorded_indices_are_expanded(text: str, indices: list[int]) -> None:
    assert list(words.jobs(f"{text}|PENDING|N/A|N/A||JobHeldUser")) == list(indices)


@pytest.mark.parametrize(
    "line", ["0-3,...|PENDING|N/A|N/A||None", "1|FLOATING|N/A|N/A||None", "1|PENDING", "slurm_load_jobs error: what"]
)
def test_what_is_not_understood_is_no_queue_without_jobs(line: str) -> None:
    with pytest.raises(ValueError, match="not understood"):
        words.jobs(line)


AWAY = {
    "squeue": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
    "a hanging controller": "slurm_load_jobs error: Socket timed out on send/recv operation\n",
    "scancel": "scancel: error: Kill job error on job id 1_3: Unable to contact slurm controller (connect failure)\n",
    "scontrol": "Unexpected message received for job 1_3\nslurm_suspend error: Unexpected message received\n",
    "sbatch": "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
    "no munged": "squeue: error: Munge encode failed: Failed to access a socket\n"
    "slurm_load_jobs error: Protocol authentication error\n",
    "no configuration": "squeue: error: fetch_config: DNS SRV lookup failed\n"
    "squeue: fatal: Could not establish a configuration source\n",
}

REFUSED = {
    "1_3: Access/permission denied\n": "Access/permission denied",
    "1_3: Job has already finished\n": "Job has already finished",
    "Invalid job id specified for job 1_3\nslurm_suspend error: Invalid job id specified\n": "Invalid job id specified",
    "sbatch: error: invalid partition specified: nowhere\n"
    "sbatch: error: Batch job submission failed: Invalid partition name specified\n": (
        "invalid partition specified: nowhere; Batch job submission failed: Invalid partition name specified"
    ),
    "sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)\n": (
        "Batch job submission failed: Required partition not available (inactive or drain)"
    ),
    "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS "
    "policy (job submit limit, user's size and/or time limits)\n": (
        "AssocMaxSubmitJobLimit; Batch job submission failed: Job violates accounting/QOS policy (job submit limit, "
        "user's size and/or time limits)"
    ),
    "": "exit status 1, without a word",
}


@pytest.mark.parametrize("who", AWAY)
def test_a_controller_that_is_away_refuses_nothing(who: str) -> None:
    reply = ClientReply(1, "", AWAY[who])
    assert isinstance(reply.failure("look", "1"), CallUnanswered)
    assert not reply.is_of_nothing
    assert not reply.is_released


@pytest.mark.parametrize("said", REFUSED)
def test_a_refusal_is_told_in_clean_words(said: str) -> None:
    assert ClientReply(1, "", said).failure("start", "1_3") == CallRefused("start", "1_3", REFUSED[said])


@pytest.mark.parametrize("code", [None, -9, 0])
def test_a_command_that_did_not_end_by_itself_has_said_nothing(code: int | None) -> None:
    assert isinstance(ClientReply(code, "", "").failure("submit", "a"), CallUnanswered)


def test_an_array_is_found_among_others() -> None:
    out = "1|/dev/stdin b1946ac9\n  12|/home/a b/job.sh\n7|\n13|/dev/stdin 1946ac9\n14|(null)\n13|/dev/stdin 1946ac9\n"
    assert [words.found(out, nonce) for nonce in ("b1946ac9", "1946ac9", "6ac9", "null")] == ["1", "13", "", ""]


@pytest.mark.parametrize(("out", "number"), [("812\n", "812"), ("812;far\n", "812"), ("", ""), ("sbatch: what\n", "")])
def test_the_number_of_an_array_is_read(out: str, number: str) -> None:
    assert words.submitted(out) == number


def test_a_nonce_that_is_no_word_is_refused() -> None:
    with pytest.raises(ValueError, match="letters and digits"):
        words.submission(3, "a b")


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (ClientReply(0, "PENDING|BeginTime\n", ""), "its job 22 waits (BeginTime)"),
        (ClientReply(0, "PENDING|JobHeldUser\n", ""), "its job 22 waits (JobHeldUser)"),
        (ClientReply(0, "REQUEUE_HOLD|JobHoldMaxRequeue\n", ""), "its job 22 waits (JobHoldMaxRequeue)"),
        (ClientReply(0, "FAILED|NonZeroExitCode\n", ""), "its job 22 has ended (FAILED)"),
        (ClientReply(1, "", "slurm_load_jobs error: Invalid job id specified\n"), "its job 22 has ended"),
        (ClientReply(0, "RUNNING|None\n", ""), ""),
        (ClientReply(1, "", "Unable to contact slurm controller (connect failure)\n"), ""),
        (ClientReply(0, "UNHEARD_OF|None\n", ""), ""),
    ],
)
def test_why_a_job_does_not_run_is_told(reply: ClientReply, told: str) -> None:
    assert words.told_of("22", reply) == told
