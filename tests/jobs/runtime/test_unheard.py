"""What follows if hosts that both reach the controller do not reach each other."""

from __future__ import annotations

import math
import select
import socket
import time

from farandole.control.messages import Abort, Hello, HostSilent
from farandole.elastic.membership.actions import Kill
from farandole.elastic.membership.formation import ElasticFormation
from farandole.elastic.membership.job_events import HostsFound
from farandole.elastic.membership.membership import Membership
from farandole.elastic.membership.policy import Policy
from farandole.engines.silence_monitor import SilenceMonitor, limit_s, silent_for_s
from farandole.runtime.controller.controller import Controller
from farandole.runtime.session.init_arguments import ANY
from farandole.settings import Settings
from tests.unit.runtime.test_controller import Job


def test_the_generation_ends_and_both_hosts_are_named() -> None:
    job = Job(3)
    for worker_id, host in enumerate("abb"):
        job.hello(worker_id, host=host, engines=["tcp"])
    job.take()
    job.say("x", HostSilent(1, "b"))
    told = job.only(Abort)
    assert len(told) == 6
    assert {message.kind for _, message in told} == {"AbortError"}
    (reason,) = {message.reason for _, message in told}
    assert reason.startswith(
        "hosts a and b do not reach each other: the network between them is cut, or one is down: rank 0 on a has waited"
    )
    assert job.reports == [reason]


def test_nobody_is_unheard_of_a_host_without_ranks_or_in_another_generation() -> None:
    job = Job(2)
    job.form()
    job.say("x", HostSilent(1, "nowhere"))
    job.say("x", HostSilent(2, "a"))
    assert job.take() == []
    assert job.controller.statistics()["refused"] == 2


def test_in_an_elastic_job_the_workers_of_the_younger_host_are_ended() -> None:
    formation = ElasticFormation(Membership(Policy()), lambda _hosts, _engines: ("tcp", ""), lambda: 0.0)
    formation.report_event(HostsFound({"a": 1, "b": 2}))
    controller = Controller(lambda *_: None, Settings(min_np=1), ANY, lambda: 0.0, formation)
    controller.tick(0.0)
    formation.orders.clear()
    for worker_id, host in enumerate("abb"):
        controller.worker_started(worker_id, worker_id, host)
        controller.handle(
            b"%du" % worker_id, Hello(str(worker_id), worker_id, ANY, host, worker_id, "1", ["tcp"], 5, 40, [])
        )
    controller.handle(b"1u", HostSilent(1, "a"))
    controller.tick(0.0)
    assert [each.action.worker_id for each in formation.orders if isinstance(each.action, Kill)] == [1, 2]


def test_a_lookout_tells_nothing_of_a_host_that_answers() -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        lookout = SilenceMonitor({connection: "b"}, 0.01, told.append)
        accepted, _ = server.accept()
        since, looks = time.monotonic(), 0
        while time.monotonic() - since < 1.1 * limit_s(0.01):
            assert not select.select([connection], [], [], lookout.pause_s)[0]  # only the kernels ask each other
            lookout.look(since)
            looks += 1
        assert silent_for_s(connection) < limit_s(0.01)
        assert looks <= 6
        accepted.close()
    assert told == []
    assert silent_for_s(connection) == 0.0
    assert limit_s(3.0) == 6.0
    assert SilenceMonitor({}, 3.0, told.append).pause_s == math.inf
