"""What was decided can be decided again from the journal alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.control.exits import GenerationEnded, HostLost, WorkerExited
from farandole.elastic.membership import job_events
from farandole.elastic.membership.journal import Recorded, read, replay
from farandole.elastic.membership.policy import Policy
from farandole.elastic.membership.replay import main
from farandole.errors import UsageError

STORY: list[tuple[float, job_events.JobEvent]] = [
    (0.0, job_events.HostsFound({"a": 1, "b": 1})),
    (1.0, job_events.WorkerConnected(0, ready=False)),
    (1.5, job_events.WorkerConnected(1, ready=False)),
    (9.0, WorkerExited(1, -9, "worker 1 on b was killed by SIGKILL")),
    (9.1, job_events.WorkerConnected(0, ready=True)),
    (9.2, HostLost("b", "host b is silent")),
]


def journal() -> list[str]:
    lines: list[str] = []
    membership = Recorded(Policy(min_np=1), lines.append)
    for now, event in STORY:
        membership.on(now, event)
        membership.decide(now)
    while membership.deadline_s is not None and membership.deadline_s < 60.0:
        membership.decide(membership.deadline_s)
    return lines


def test_a_journal_is_replayed_to_the_same_decisions() -> None:
    lines = journal()
    policy, turns = read(lines)
    assert policy == Policy(min_np=1)
    assert [heard.event for turn in turns for heard in turn.heard] == [event for _, event in STORY]
    assert replay(lines) == turns
    assert any(decision.reason for turn in turns for decision in turn.decisions)


def test_another_controller_goes_on_where_a_journal_ends() -> None:
    lines = journal()
    for number, turn in enumerate(read(lines)[1], 1):
        goes_on = list(lines[:number])
        heir = Recorded(Policy(min_np=1), goes_on.append, goes_on)
        for heard in turn.heard:
            heir.on(heard.at_s, heard.event)
        assert heir.decide(turn.at_s) == turn.decisions
        assert goes_on == lines[: number + 1]


def test_a_journal_that_tells_no_worker_with_a_step_reads_as_it_always_has() -> None:
    """The last one said counts: a shorter step after a longer one shortens the wait for the member that hangs."""
    lines: list[str] = []
    membership = Recorded(Policy(min_np=1, hang_timeout_s=5.0), lines.append)
    begun: list[job_events.JobEvent] = [
        job_events.HostsFound({"a": 3}),
        *(job_events.WorkerConnected(worker_id, ready=False) for worker_id in range(3)),
        *(job_events.LongestStep(step_s) for step_s in (4.0, 2.0)),
        WorkerExited(2, -9, "worker 2 was killed by SIGKILL"),
        job_events.WorkerConnected(0, ready=True),
    ]
    for event in begun:
        membership.on(9.0, event)
        membership.decide(9.0)
    assert membership.deadline_s == 19.0  # five steps of 2 s
    membership.decide(19.0)
    as_before = [line.replace(',"worker_id":-1', "") for line in lines]
    assert "LongestStep" in "".join(as_before)
    assert "-1" not in "".join(line for line in as_before if "LongestStep" in line)
    assert replay(as_before) == replay(lines) == read(lines)[1]


def test_the_end_of_the_job_is_decided_once() -> None:
    lines: list[str] = []
    membership = Recorded(Policy(min_np=1), lines.append)
    for event in (
        job_events.HostsFound({"a": 1}),
        job_events.WorkerConnected(0, ready=False),
        WorkerExited(0, 0, "it has ended"),
    ):
        membership.on(0.0, event)
        decided = membership.decide(0.0)
    membership.on(1.0, job_events.HostsFound({"a": 2}))  # comes too late for anything
    assert membership.decide(1.0) == []
    heir = Recorded(Policy(min_np=1), lines.append, lines)
    assert heir.finish == decided[-1]
    assert heir.status == 0
    assert heir.decide(9.0) == []


def test_ends_stand_in_a_journal_as_they_always_have() -> None:
    """Messages of agents carry the same objects with more in them; a journal has what is decided by."""
    ends: list[tuple[job_events.JobEvent, str]] = [
        (WorkerExited(1, 0, "it broke"), '{"type":"WorkerExited","worker_id":1,"code":0,"description":"it broke"}'),
        (GenerationEnded(2, "it broke"), '{"type":"GenerationEnded","generation":2,"reason":"it broke"}'),
    ]
    for end, text in ends:
        lines: list[str] = []
        membership = Recorded(Policy(), lines.append)
        membership.on(0.0, end)
        membership.decide(0.0)
        assert text in lines[1]
        assert read(lines)[1][0].heard[0].event == end
        assert len(repr(end).split(", ")) == text.count(",")  # a replay shows no more than that


def test_a_last_line_that_was_torn_is_left() -> None:
    lines = journal()
    assert replay([*lines, lines[-1][:20]]) == replay(lines)


def test_another_decision_is_told_with_both() -> None:
    lines = journal()
    changed = [line.replace('"host":"b","slot":0', '"host":"c","slot":0') for line in lines]
    with pytest.raises(UsageError, match=r"turn 1 of the journal.*comes out otherwise"):
        replay(changed)


@pytest.mark.parametrize("text", ["", "nonsense\n", '{"type":"Turn","at_s":0.0,"heard":[],"decisions":[]}\n'])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no journal"):
        read(text.splitlines(keepends=True))


def test_the_command_tells_the_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "journal"
    file.write_text("".join(journal()))
    assert main([str(file)]) == 0
    told = capsys.readouterr().out
    assert "killed by SIGKILL" in told
    assert "generation 2: worker 0 on a" in told
    assert main([str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
    assert main([]) == 2
