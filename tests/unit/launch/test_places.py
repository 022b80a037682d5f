"""Places that workers are told of: ``TF_CONFIG`` on request, beside PyTorch's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from farandole.control.agent_messages import StartWorkers, WorkerSpec
from farandole.launch.hosts.places import ports_wanted, with_places
from farandole.settings import Settings

HOSTS = ("box", "box", "else")
PORTS = {"box": (7000, 7001, 7002), "else": (8000, 8001, 8002)}


def told(settings: Settings, ports: Mapping[str, tuple[int, ...]] = PORTS, hosts: tuple[str, ...] = HOSTS) -> list[Any]:
    """What each rank finds in ``TF_CONFIG``."""
    specs = [WorkerSpec(rank, ["true"], {"own": "1"}) for rank in range(len(hosts))]
    start = with_places(StartWorkers(specs), hosts, settings, ports, {})
    assert all(each.environment["own"] == "1" for each in start.workers)
    assert start.environment["MASTER_PORT"] == str(ports[hosts[0]][0])
    return [json.loads(each.environment.get("TF_CONFIG", "null")) for each in start.workers]


def test_each_worker_has_a_port_of_its_own_that_is_none_of_pytorchs() -> None:
    workers = ["box:7001", "box:7002", "else:8001"]
    for rank, each in enumerate(told(Settings(tf_config=True))):
        assert each == {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    alone = told(Settings(tf_config=True), {"box": (1, 2, 3)}, ("box", "box"))
    assert alone[1]["cluster"]["worker"] == ["127.0.0.1:2", "127.0.0.1:3"]
    assert ports_wanted(Settings(tf_config=True), HOSTS) == 3


def test_nobody_gets_it_unasked() -> None:
    assert told(Settings()) == [None] * 3
    assert ports_wanted(Settings(), HOSTS) == 1


def test_a_host_without_ports_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert told(Settings(tf_config=True), {"box": (7000, 7001, 7002), "else": (8000,)}) == [None] * 3
    assert "else has too few free ports" in caplog.text
