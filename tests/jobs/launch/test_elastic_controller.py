"""What a controller inherits: the membership that its journal tells of, of which its launcher has read most before."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from farandole.control.addresses import EVERYWHERE
from farandole.control.channel import Router
from farandole.control.exits import GenerationEnded
from farandole.control.keys import JobKeys
from farandole.elastic.membership import job_events
from farandole.elastic.membership.formation import ElasticFormation
from farandole.elastic.membership.journal import Recorded
from farandole.elastic.membership.policy import Policy
from farandole.engines.choose import choose
from farandole.launch.agents.local import Local
from farandole.launch.hosts.discovery import Fixed
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.hosts.leased_hosts import LeasedHosts
from farandole.launch.hosts.plan import Host, Job
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.job.elastic_controller import ElasticController
from farandole.launch.job.elastic_loop import ElasticLoop
from farandole.launch.job.launcher_agents import LauncherAgents
from farandole.launch.job.launcher_pipe import LauncherPipe
from farandole.launch.job.leadership import APART_S, Leadership
from farandole.runtime.controller.root import Root
from farandole.runtime.session.init_arguments import ANY
from farandole.settings import Settings

SETTINGS = Settings(min_np=1)


@pytest.fixture
def journal() -> Iterator[int]:
    """A descriptor."""
    fd = os.memfd_create("journal")
    yield fd
    os.close(fd)


def controller(journal: int) -> ElasticController:
    """The one of a job whose journal this is."""
    elastic = ElasticJob(Job(["true"], (), SETTINGS), Fixed([Host("a", 2)]), Local(), "a")
    return ElasticController(elastic, SETTINGS, "secret", journal, copy=-1)


def train(membership: Recorded, generations: int) -> None:
    """Let two workers re-form so often, the last time for a reason that has an end of line of its own."""
    membership.on(0.0, job_events.HostsFound({"a": 2}))
    membership.decide(0.0)
    for number in range(generations):
        for worker_id in (0, 1):
            membership.on(1.0, job_events.WorkerConnected(worker_id, ready=True))
        membership.decide(1.0)
        membership.on(2.0, GenerationEnded(number + 1, "a worker said: \u2028 \x85"))
        membership.decide(2.0)


def test_the_first_controller_inherits_nothing(journal: int) -> None:
    assert controller(journal).inherit() is None


def test_a_membership_is_inherited_but_for_a_line_that_was_torn(journal: int) -> None:
    lines: list[str] = []
    membership = Recorded(Policy.of(SETTINGS), lines.append)
    train(membership, generations=3)
    whole = "".join(lines).encode()
    os.write(journal, whole + b'{"type":"Tu')
    heir = controller(journal).inherit()
    assert heir is not None
    assert (heir.generation, heir.members, heir.over) == (3, (0, 1), membership.over)
    assert heir.workers == membership.workers
    assert os.fstat(journal).st_size == len(whole)
    heir.on(3.0, job_events.WorkerConnected(0, ready=True))
    heir.decide(3.0)
    assert os.pread(journal, 2**20, 0).startswith(whole + b'{"type":"Turn"')


def test_what_the_launcher_has_read_is_not_read_again(journal: int) -> None:
    keeper = controller(journal)
    membership = Recorded(Policy.of(SETTINGS), lambda line: os.write(journal, line.encode()))
    for generation in range(1, 4):
        train(membership, generations=generation)
        keeper.follow()
        os.pwrite(journal, b"x" * os.fstat(journal).st_size, 0)
    heir = keeper.inherit()
    assert heir is not None
    assert heir.workers == membership.workers
    assert heir.generation == membership.generation


def test_workers_of_a_lent_host_that_was_given_up_are_lost_at_once_with_the_next_controller(tmp_path: Path) -> None:
    """The controller before has told the launcher so, and has died before its journal had it."""
    membership = Recorded(Policy.of(SETTINGS), lambda _: None)
    membership.on(0.0, job_events.HostsFound({"a": 1, "b+8_0": 1, "b+8_1": 1}))
    membership.decide(0.0)
    for worker_id in range(3):
        membership.on(1.0, job_events.WorkerConnected(worker_id, ready=True))
    membership.decide(1.0)
    assert membership.members == (0, 1, 2)
    folder = RunFolder.create(tmp_path / "run")
    terms = Leadership.of(folder, SETTINGS).lead(["true"], SETTINGS.host_timeout_s)
    hosts = LeasedHosts(Fixed([Host("a", 1)]))
    elastic = ElasticJob(Job(["true"], (), SETTINGS), hosts, Local(), "a", folder)
    formation = ElasticFormation(membership, partial(choose, "tcp", across=""), time.monotonic)
    ours, theirs = LauncherPipe.pair()
    with Router(JobKeys.from_secret(terms.term.secret), EVERYWHERE) as router:
        root = Root(router, SETTINGS, ANY, formation)
        agents = LauncherAgents(theirs, ["a/1"], inherits=lambda host: host == "a")
        with ElasticLoop(elastic, agents, root, theirs, formation, terms.term.secret, terms) as loop:
            loop.refuse(["b+8_0"])
            loop.take_over({"a": "a/1"}, None)
            left = {worker.slot.host for worker in membership.workers.values()}
            known = {host.name for host in hosts.look(time.monotonic()) or ()}
    for end in (ours, theirs):
        end.close()
    assert left == {"a", "b+8_1"}
    assert known == {"a", "b+8_1"}


def test_a_second_lead_begins_later_though_no_contact_was_left_for_it(tmp_path: Path) -> None:
    """Somebody has removed it: the lead that it was of may live, and has to see the second one first."""
    terms = Leadership.of(RunFolder.create(tmp_path / "run"), SETTINGS)
    assert terms.lead(["true"], 3.0).term.begins_s == 0.0
    before_s = time.monotonic()
    assert terms.lead(["true"], 3.0).term.begins_s >= before_s + APART_S
