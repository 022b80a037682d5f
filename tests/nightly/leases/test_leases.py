"""Nodes that are lent to an elastic job: real agents that call by themselves, on one host, which they name apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from farandole.control.agent_messages import LeaseOffer
from farandole.control.channel import Dealer
from farandole.control.keys import JobKeys
from farandole.control.run_messages import PERSON, RunOrder, RunReply
from farandole.errors import UsageError
from farandole.launch.hosts.discovery import Fixed
from farandole.launch.hosts.leader_log import LeaderLog
from farandole.launch.hosts.leased_hosts import LeasedHosts, is_lent
from farandole.launch.hosts.plan import Host
from farandole.launch.hosts.run_folder import CONTACT, RunContact, RunFolder
from farandole.launch.leases.folder_thread import JOURNAL
from farandole.launch.leases.join import CANNOT_JOIN, terms_of
from farandole.launch.leases.journal import LeaseRecord, read_records
from tests.nightly.launcher.test_elastic_jobs import Train, end, generation, train
from tests.support.launch.running import MARKER, RunningJob
from tests.support.patience import PATIENCE_S

__all__ = ["train"]

Lend = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def lend() -> Iterator[Lend]:
    """Starts ``farandole join`` for a job, with variables of Slurm's: ``lend(running, "812", 3)``."""
    agents: list[subprocess.Popen[str]] = []

    def start(running: RunningJob, job: str, index: int, np: int = 1, **more: str) -> subprocess.Popen[str]:
        slurm = {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": str(index), "SLURMD_NODENAME": "node1", **more}
        running.until((folder(running) / CONTACT).exists, "for the contact")
        command = [sys.executable, "-m", "farandole", "join", "-np", str(np), str(folder(running))]
        environment = {**os.environ, **slurm, MARKER: running.marker}
        agents.append(
            subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                start_new_session=True,
            )
        )  # fmt: skip
        running.guests.append(agents[-1])
        return agents[-1]

    yield start
    for agent in agents:
        agent.kill()
        agent.communicate()


def folder(running: RunningJob) -> Path:
    return running.folder / "run"


def lead(train: Train, *options: str, faults: tuple[str, ...] = ()) -> RunningJob:
    """A job of one worker that takes leases."""
    return train("--run-folder", "run", "--min-np", "1", "--max-np", "8", *options, faults=faults)


def test_two_leases_on_one_node_join_and_leave_by_announcement_when_they_are_told_to_end(
    train: Train, lend: Lend
) -> None:
    running = lead(train)
    first = generation(running, lambda number, _: number == 1)
    agents = lend(running, "812", 0, np=2), lend(running, "812", 1)
    whole = generation(running, lambda _, size: size == 4)
    assert whole[0].process == first[0].process
    agents[0].send_signal(signal.SIGTERM)
    agents[0].send_signal(signal.SIGTERM)  # as Slurm and a launcher in between may both do
    rest = generation(running, lambda number, size: size == 2 and number > whole[0].generation)
    assert agents[0].wait(PATIENCE_S) == 0, "its job ends by itself"
    assert rest[0].step == rest[1].step >= whole[0].step
    assert end(running) == 0
    assert agents[1].wait(PATIENCE_S) == 0, "the training is over"
    assert "node1+812_0 leaves at the next commit: its scheduler wants it back (SIGTERM)" in running.stderr
    assert "Traceback" not in running.stderr
    assert not (folder(running) / CONTACT).exists()


def test_a_lease_that_dies_costs_a_step_and_its_successor_is_another_one(train: Train, lend: Lend) -> None:
    running = lead(train)
    agent = lend(running, "812", 0)
    generation(running, lambda _, size: size == 2)
    agent.kill()
    alone = generation(running, lambda number, size: size == 1 and number > 1)
    agent.wait(PATIENCE_S)
    again = lend(running, "812", 0)  # as if Slurm had queued the same job again, and not said so
    assert again.wait(PATIENCE_S) == 0
    running.until(lambda: "refused: node1+812_0 has been here before" in running.stderr)
    running.fail_controller()
    again = lend(running, "812", 0)
    assert again.wait(PATIENCE_S) == 0
    running.until(lambda: running.stderr.count("refused: node1+812_0 has been here before") == 2, "by the next one")
    lend(running, "812", 0, SLURM_RESTART_COUNT="1")
    generation(running, lambda number, size: size == 2 and number > alone[0].generation)
    assert end(running) == 0
    assert "node1+812_0.1 is lent" in running.stderr


def test_leases_stay_when_the_controller_fails(train: Train, lend: Lend) -> None:
    running = lead(train)
    agent = lend(running, "812", 0)
    first = generation(running, lambda _, size: size == 2)
    running.fail_controller()
    second = generation(running, lambda number, size: size == 2 and number > first[0].generation)
    assert [each.process for each in second] == [each.process for each in first]
    agent.send_signal(signal.SIGTERM)
    generation(running, lambda number, size: size == 1 and number > second[0].generation)
    assert agent.wait(PATIENCE_S) == 0
    assert end(running) == 0


def test_a_notice_that_comes_while_the_controller_is_replaced_is_heard_by_the_next_one(
    train: Train, lend: Lend
) -> None:
    running = lead(train)
    agent = lend(running, "812", 0)
    first = generation(running, lambda _, size: size == 2)
    with running.failing():
        agent.send_signal(signal.SIGTERM)
        running.until(lambda: not is_pending(agent.pid, signal.SIGTERM), "for the agent to hear it")
    generation(running, lambda number, size: size == 1 and number > first[0].generation)
    assert agent.wait(PATIENCE_S) == 0
    assert end(running) == 0


def is_pending(pid: int, number: int) -> bool:
    """Whether a process has not taken a signal in."""
    pending = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("ShdPnd"))
    return bool(int(pending.split()[1], 16) >> (number - 1) & 1)


def test_nothing_is_left_of_leases_when_the_lead_dies(train: Train, lend: Lend) -> None:
    running = lead(train)
    agent = lend(running, "812", 0)
    generation(running, lambda _, size: size == 2)
    os.kill(running.process.pid, signal.SIGKILL)
    agent.wait(PATIENCE_S)
    running.until(lambda: not running.left(), "for the end of everything")


def person(*words: str) -> subprocess.CompletedProcess[str]:
    """What a person types."""
    command = [sys.executable, "-m", "farandole", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def ordered(running: RunningJob, verb: str, *words: str) -> str:
    done = person(verb, str(folder(running)), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_people_see_and_order_a_run(train: Train, lend: Lend) -> None:
    running = lead(train)
    generation(running, lambda number, _: number == 1)
    lend(running, "812", 0, np=2, SLURM_JOB_END_TIME="4000000000")
    generation(running, lambda _, size: size == 3)
    shown = ordered(running, "ps")
    assert "run run: 3 workers (1 to 8), generation " in shown
    assert "812_0" in shown
    assert "1 to 2" in shown
    assert max(map(len, shown.splitlines())) <= 80
    refused = person("scale", str(folder(running)), "9")
    assert refused.returncode != 0
    assert "9 workers: this run has 1 to 8" in refused.stderr
    assert "no more leases are released" in ordered(running, "hold")
    assert "the policy decides again" in ordered(running, "release")
    assert "from now on the run is to have 1 worker" in ordered(running, "scale", "1")
    generation(running, lambda number, size: size == 1 and number > 1)
    running.until(lambda: "node1+812_0" not in ordered(running, "ps"), "for the end of the lease")
    assert "no more than 1 worker wanted: 1 worker ordered" in " ".join(ordered(running, "ps").split())
    assert "the training ends at its next commit" in ordered(running, "stop")
    assert running.end() == 0
    for verb, *words in (("ps",), ("scale", "2"), ("stop",)):
        over = person(verb, str(folder(running)), *words)
        assert over.returncode != 0
        assert "the run has not begun, or is over" in over.stderr
        assert "Traceback" not in over.stderr


def test_a_run_that_was_stopped_is_so_for_the_next_controller_too(train: Train) -> None:
    running = lead(train, "--grace-seconds", "60", faults=("0:20:wait",))  # its worker is in the middle of a step
    generation(running, lambda number, _: number == 1)
    ordered(running, "stop")
    running.fail_controller()
    running.until(lambda: running.stderr.count("farandole stop: ending") >= 2, "for the next one to stop it")
    (running.folder / "go").touch()
    assert running.end() == 0


def test_an_order_is_answered_when_the_next_controller_will_know_it(train: Train) -> None:
    running = lead(train)
    generation(running, lambda number, _: number == 1)
    path = folder(running) / JOURNAL
    running.until(path.exists, "for the first decision")
    away = path.with_name("away")
    path.rename(away)
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR)  # a pipe that takes what is written, and cannot be synced
    try:
        assert "Give the order again if the controller is replaced" in ordered(running, "hold")
    finally:
        path.unlink()
        away.rename(path)
        os.close(reader)
    ordered(running, "scale", "3")
    running.fail_controller()
    running.until(lambda: "another one takes over" in running.stderr, "for the next one")
    running.until(lambda: any(each.after.ordered == 3 for each in records(path)), "for the order to count")
    assert end(running) == 0


def records(path: Path) -> list[LeaseRecord]:
    with path.open() as lines:
        return list(read_records(lines))


def test_a_journal_that_cannot_be_read_now_stops_no_controller(train: Train) -> None:
    running = lead(train)
    generation(running, lambda number, _: number == 1)
    path = folder(running) / JOURNAL
    running.until(path.exists, "for the first decision")
    kept = path.read_bytes()
    path.unlink()
    os.mkfifo(path)  # to open it waits for somebody who writes, as a file server that is away
    running.fail_controller()
    generation(running, lambda number, _: number == 2)
    for _ in range(8):  # each takes about a second
        assert "run run: 1 worker" in ordered(running, "ps")
    fifo = os.open(path, os.O_WRONLY)
    path.unlink()
    path.write_bytes(kept)
    path.chmod(0o600)
    os.close(fifo)
    assert "from now on the run is to have 2 workers" in ordered(running, "scale", "2")
    assert end(running) == 0


def test_a_run_is_stopped_though_its_journal_cannot_be_read_and_orders_are_refused_in_time(train: Train) -> None:
    running = lead(train)
    generation(running, lambda number, _: number == 1)
    path = folder(running) / JOURNAL
    running.until(path.exists, "for the first decision")
    path.unlink()
    os.mkfifo(path)  # to open it waits for somebody who writes, as a file server that is away
    running.fail_controller()
    generation(running, lambda number, _: number == 2)
    refused = person("scale", str(folder(running)), "2")
    assert refused.returncode != 0
    assert (
        "'scale' is not obeyed: the run folder has not answered for 5 s, so its journal cannot be read"
        in refused.stderr
    )
    assert "the training ends at its next commit" in ordered(running, "stop")
    assert running.end() == 0


def test_a_lead_that_wakes_as_another_one_leads_obeys_nothing_that_came_meanwhile(train: Train) -> None:
    running = lead(train)
    generation(running, lambda number, _: number == 1)
    path = folder(running) / JOURNAL
    running.until(path.exists, "for the first decision")
    launcher, contact = running.process.pid, RunFolder(folder(running)).contact()
    with Dealer(contact.addresses[0], PERSON + b"late", JobKeys.from_secret(contact.secret)) as dealer:
        os.kill(launcher, signal.SIGSTOP)
        dealer.send(RunOrder("scale", 3))
        LeaderLog(folder(running)).begin_epoch(goes_on=True)
        os.kill(launcher, signal.SIGCONT)
        reply = dealer.recv(60.0)
    assert isinstance(reply, RunReply)
    assert not reply.accepted
    assert "number 2 has taken over" in reply.text
    assert running.end() == 1
    assert not [each for each in records(path) if each.asked]


def test_a_folder_has_one_lead(train: Train) -> None:
    running = lead(train)
    generation(running, lambda number, _: number == 1)
    second = person("run", "--run-folder", str(folder(running)), "--min-np", "1", "--max-np", "2", "true")
    assert second.returncode != 0
    assert f"a run goes on in {folder(running)}: take another --run-folder" in second.stderr
    assert (folder(running) / CONTACT).exists()
    assert end(running) == 0


def test_a_contact_that_an_earlier_lead_has_overwritten_late_is_published_again(train: Train) -> None:
    running = lead(train)
    generation(running, lambda number, _: number == 1)
    run = RunFolder(folder(running))
    own = run.contact()
    late = msgspec.structs.replace(own, epoch=own.epoch - 1, addresses=["tcp://127.0.0.1:9"])
    (run.path / "late").write_bytes(msgspec.json.encode(late))
    (run.path / "late").chmod(0o600)
    (run.path / "late").rename(run.path / CONTACT)
    running.until(lambda: run.contact() == own, "for the contact of the lead")
    (run.path / CONTACT).unlink()
    running.until((run.path / CONTACT).exists, "for it to come again")
    assert "run run: 1 worker" in ordered(running, "ps")
    assert end(running) == 0


def test_a_run_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run")
    run.publish(RunContact(["tcp://127.0.0.1:9"], "aa" * 32, 1.0, 0.2))
    done = person("ps", str(run.path))
    assert done.returncode != 0
    assert "the run run cannot be reached from here" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with pytest.raises(UsageError, match=f"mode 755.*chmod 700 {shared}"):
        RunFolder.create(shared)


@pytest.mark.parametrize("case", ["nothing", "readable", "rubbish", "other version", "wrong key"])
def test_a_node_that_cannot_join_says_why_and_ends_with_status_3(case: str, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run")
    contact = RunContact(["tcp://127.0.0.1:9"], "aa" * 32, 1.0, 0.2)
    said = {
        "nothing": "the run has not begun, or is over",
        "readable": "with mode 644, not to you alone; type: chmod 600",
        "rubbish": "is not what a leader writes",
        "other version": "the run run has Farandole 0.0.0 and this is",
        "wrong key": "none of the controller's addresses answered",
    }
    if case != "nothing":
        run.publish(msgspec.structs.replace(contact, version="0.0.0") if case == "other version" else contact)
    path = tmp_path / "run" / CONTACT
    if case == "readable":
        path.chmod(0o644)
    if case == "rubbish":
        path.write_text("{}")
    command = [sys.executable, "-m", "farandole", "join", str(tmp_path / "run")]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == CANNOT_JOIN
    assert said[case] in done.stderr
    assert "aaaa" not in done.stderr


@pytest.mark.parametrize("case", ["other version", "rubbish", "readable", "folder", "nothing"])
def test_a_second_lead_begins_only_where_there_is_certainly_no_first(case: str, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run")
    path = run.path / CONTACT
    words = {
        "other version": "has Farandole 0.0.0",
        "rubbish": "is not what a leader writes",
        "readable": "with mode 644",
        "folder": "it is no file, but a folder",
        "nothing": "",
    }[case]
    if case in ("other version", "readable"):
        contact = RunContact(["tcp://127.0.0.1:9"], "aa" * 32, 1.0, 0.2)
        run.publish(msgspec.structs.replace(contact, version="0.0.0") if case == "other version" else contact)
        path.chmod(0o644 if case == "readable" else 0o600)
    elif case == "rubbish":
        path.touch(0o600)
    elif case == "folder":
        path.mkdir()
    if not words:
        run.refuse_second()
        return
    with pytest.raises(UsageError, match=f"it is not known whether a run goes on in .*{words}.*rm {path}"):
        run.refuse_second()


@pytest.mark.parametrize(
    ("variables", "host", "slots"),
    [
        ({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n2", "SLURM_NTASKS_PER_NODE": "4"}, "n2+7", 4),
        ({"SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "3", "SLURMD_NODENAME": "n2"}, "n2+8_3", 1),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "SLURMD_NODENAME": "n2"}, "n2+7.2", 1),
    ],
)  # fmt: skip
def test_a_lease_is_named_by_its_job_and_restart(variables: Mapping[str, str], host: str, slots: int) -> None:
    terms = terms_of(variables, None)
    assert (terms.host, terms.slots) == (host, slots)
    assert is_lent(terms.host)
    assert terms.nonce != terms_of(variables, None).nonce


def test_hosts_of_leases_come_after_the_leads_own_and_none_comes_twice() -> None:
    hosts = LeasedHosts(Fixed([Host("lead", 2)]))
    one, two = (LeaseOffer("8", index, 0, "x", "n", 4) for index in (1, 2))
    assert hosts.look(0.0) == (Host("lead", 2),)
    assert hosts.look(0.0) is None
    assert [hosts.admit(terms) for terms in (two, one)] == ["", ""]
    assert hosts.look(0.0) == (Host("lead", 2), Host("n+8_2", 4), Host("n+8_1", 4))
    assert hosts.release("n+8_2")
    assert not hosts.release("n+8_2")
    assert not hosts.release("lead")
    assert hosts.look(0.0) == (Host("lead", 2), Host("n+8_1", 4))
    assert hosts.leaving == {"n+8_2"}
    hosts.gone("n+8_2")
    assert not hosts.leaving
    assert "has been here before" in hosts.admit(two)
    assert "lends 0 workers" in hosts.admit(LeaseOffer("8", 3, 0, "x", "n", 0))
