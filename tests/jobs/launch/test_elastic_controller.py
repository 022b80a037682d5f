"""What a controller takes over from one that has failed."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from farandole.control.addresses import EVERYWHERE
from farandole.control.agent_messages import Leaving, StopWorkers
from farandole.control.channel import Router
from farandole.control.keys import JobKeys
from farandole.elastic.membership import job_events
from farandole.elastic.membership.formation import ElasticFormation
from farandole.elastic.membership.journal import Recorded
from farandole.elastic.membership.policy import Policy
from farandole.engines.choose import choose
from farandole.launch.agents.agents import AgentProcess, Agents
from farandole.launch.agents.local import Local
from farandole.launch.agents.output import Receipts
from farandole.launch.hosts.discovery import Fixed
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.hosts.leased_hosts import LeasedHosts
from farandole.launch.hosts.plan import Host, Job
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.job.elastic_agents import ElasticAgents
from farandole.launch.job.elastic_loop import Handover
from farandole.launch.job.leadership import APART_S, Leadership
from farandole.launch.job.leased_loop import LeasedLoop
from farandole.launch.job.loop import NO_SIGNALS, JobResult
from farandole.runtime.controller.root import Root
from farandole.runtime.session.init_arguments import ANY
from farandole.settings import Settings

SETTINGS = Settings(min_np=1)


@contextlib.contextmanager
def leading(tmp_path: Path, membership: Recorded, handover: Handover) -> Iterator[LeasedLoop]:
    """The loop of a next controller, which has an agent on host a, as if it ran."""
    folder = RunFolder.create(tmp_path / "run")
    terms = Leadership.of(folder, SETTINGS).lead(["true"], SETTINGS.host_timeout_s)
    hosts = LeasedHosts(Fixed([Host("a", 1)]))
    elastic = ElasticJob(Job(["true"], (), SETTINGS), hosts, Local(), "a", folder)
    formation = ElasticFormation(membership, partial(choose, "tcp", across=""), time.monotonic)
    secret = terms.term.secret
    with Router(JobKeys.from_secret(secret), EVERYWHERE) as router, Agents([], SETTINGS, captured=True) as children:
        root = Root(router, SETTINGS, ANY, formation)
        agents = ElasticAgents(elastic, SETTINGS, secret, children)
        agents.admit("a")
        with LeasedLoop(elastic, agents, root, NO_SIGNALS, handover, formation, secret, terms) as loop:
            loop.take_over()
            yield loop
    handover.output.close(1.0)


def test_workers_of_a_lent_host_that_was_given_up_are_lost_at_once_with_the_next_controller(tmp_path: Path) -> None:
    """The controller before has failed when it had given up the host, and before its journal had it."""
    membership = Recorded(Policy.of(SETTINGS), lambda _: None)
    membership.on(0.0, job_events.HostsFound({"a": 1, "b+8_0": 1, "b+8_1": 1}))
    membership.decide(0.0)
    for worker_id in range(3):
        membership.on(1.0, job_events.WorkerConnected(worker_id, ready=True))
    membership.decide(1.0)
    assert membership.members == (0, 1, 2)
    with leading(tmp_path, membership, Handover(Receipts.own(), gone=["b+8_0"])) as loop:
        left = {worker.slot.host for worker in membership.workers.values()}
        known = {host.name for host in loop._discovery.look(time.monotonic()) or ()}
    assert left == {"a", "b+8_1"}
    assert known == {"a", "b+8_1"}


def test_signals_stay_what_they_were_with_the_next_controller(tmp_path: Path) -> None:
    """Also after an order to stop: the second interrupt kills, and who had no signal yet is to get it."""
    output = Receipts.own()
    handover = Handover(
        output,
        JobResult(0, ""),
        is_stopped=True,
        signals=[signal.SIGINT, signal.SIGINT],
        unpassed=[signal.SIGUSR1] * 2,
    )
    with leading(tmp_path, Recorded(Policy.of(SETTINGS), lambda _: None), handover) as loop:
        assert loop._orders == StopWorkers(0.0)
        assert loop._outcome() == JobResult(0, "")
    assert handover.signals == [signal.SIGINT, signal.SIGINT]
    assert handover.unpassed == [signal.SIGUSR1, signal.SIGUSR1]


def test_a_result_other_than_a_users_order_stays_with_the_next_controller(tmp_path: Path) -> None:
    """The run folder no longer answered, or a scheduler took the lead's host: status 0 would end the run for good."""
    decided = JobResult(143, "the leader was told to end, and all workers have left")
    membership = Recorded(Policy.of(SETTINGS), lambda _: None)
    membership.on(0.0, job_events.HostsFound({"a": 1, "b": 1}))
    membership.decide(0.0)
    with leading(tmp_path, membership, Handover(Receipts.own(), decided, grace_s=60.0)) as loop:
        assert loop._orders == StopWorkers(60.0)
        assert loop._outcome() == decided


def test_an_agent_that_was_given_up_does_not_end_the_job_when_its_scheduler_ends_it(tmp_path: Path) -> None:
    with leading(tmp_path, Recorded(Policy.of(SETTINGS), lambda _: None), Handover(Receipts.own())) as loop:
        loop._open.clear()  # all that is left are hosts of leases, which connect later
        loop._on_agent("gone", Leaving())
        assert loop._orders is None


def test_agents_that_have_exited_are_not_those_of_the_next_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller failed of an exit that it was about to handle, and another time when it freed the child."""
    monkeypatch.setattr("farandole.launch.agents.local.entry_command", lambda _: ["true"])
    elastic = ElasticJob(Job(["true"], (), SETTINGS), Fixed([Host("a", 1)]), Local(), "a")
    with Agents([], SETTINGS, captured=True) as children:
        agents = ElasticAgents(elastic, SETTINGS, "", children)
        agents.add("a", "a/1")
        while agents.of("a").code is None or agents.of("a").fds:
            agents.of("a").attend()
        agents.keep_running()
        assert [host for agent in agents for host in agent.hosts] == []
        agents.drop_exited()
        with monkeypatch.context() as failing:
            wait = AgentProcess.wait
            failing.setattr(AgentProcess, "wait", lambda *given: len(wait(*given)) / 0)
            with pytest.raises(ZeroDivisionError):
                agents.drop_exited()
        agents.drop_exited()
        assert list(children) == []


def test_a_second_lead_begins_later_though_no_contact_was_left_for_it(tmp_path: Path) -> None:
    """Somebody has removed it: the lead that it was of may live, and has to see the second one first."""
    terms = Leadership.of(RunFolder.create(tmp_path / "run"), SETTINGS)
    assert terms.lead(["true"], 3.0).term.begins_s == 0.0
    before_s = time.monotonic()
    assert terms.lead(["true"], 3.0).term.begins_s >= before_s + APART_S
