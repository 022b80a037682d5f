"""What a controller takes over from one that has failed."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from farandole.control.addresses import EVERYWHERE
from farandole.control.channel import Router
from farandole.control.keys import JobKeys
from farandole.elastic.membership import job_events
from farandole.elastic.membership.formation import ElasticFormation
from farandole.elastic.membership.journal import Recorded
from farandole.elastic.membership.policy import Policy
from farandole.engines.choose import choose
from farandole.launch.agents.agents import Agents
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
from farandole.launch.job.loop import NO_SIGNALS
from farandole.runtime.controller.root import Root
from farandole.runtime.session.init_arguments import ANY
from farandole.settings import Settings

SETTINGS = Settings(min_np=1)


def test_workers_of_a_lent_host_that_was_given_up_are_lost_at_once_with_the_next_controller(tmp_path: Path) -> None:
    """The controller before has failed when it had given up the host, and before its journal had it."""
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
    secret, handover = terms.term.secret, Handover(Receipts.own(), gone=["b+8_0"])
    with Router(JobKeys.from_secret(secret), EVERYWHERE) as router, Agents([], SETTINGS, captured=True) as children:
        root = Root(router, SETTINGS, ANY, formation)
        agents = ElasticAgents(elastic, SETTINGS, secret, children)
        agents.admit("a")  # as if it ran
        with LeasedLoop(elastic, agents, root, NO_SIGNALS, handover, formation, secret, terms) as loop:
            loop.take_over()
            left = {worker.slot.host for worker in membership.workers.values()}
            known = {host.name for host in hosts.look(time.monotonic()) or ()}
    handover.output.close(1.0)
    assert left == {"a", "b+8_1"}
    assert known == {"a", "b+8_1"}


def test_a_second_lead_begins_later_though_no_contact_was_left_for_it(tmp_path: Path) -> None:
    """Somebody has removed it: the lead that it was of may live, and has to see the second one first."""
    terms = Leadership.of(RunFolder.create(tmp_path / "run"), SETTINGS)
    assert terms.lead(["true"], 3.0).term.begins_s == 0.0
    before_s = time.monotonic()
    assert terms.lead(["true"], 3.0).term.begins_s >= before_s + APART_S
