"""Variables by which ``torch.distributed`` starts, as workers of ``farandole run`` get them."""

from __future__ import annotations

import pytest

from farandole.control.agent_messages import StartWorkers
from farandole.launch.hosts.places import with_meeting
from farandole.launch.hosts.plan import Job, workers
from farandole.settings import Settings

HOSTS = ("box", "box", "else")


def told(settings: Settings, inherited: dict[str, str], port: int = 7001) -> dict[str, str]:
    """Variables of the worker of rank 2 that PyTorch reads."""
    job = Job(["true"], HOSTS, settings)
    spec = workers(job, "", inherited)[2]
    start = with_meeting(StartWorkers([spec]), HOSTS, settings, port, inherited)
    found = {**start.environment, **spec.environment}
    return {
        name: found[name]
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        if name in found
    }


def test_ranks_and_the_place_of_rank_0_are_told() -> None:
    everything = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "box", "MASTER_PORT": "7001"}
    assert told(Settings(), {}) == everything
    outer = {"RANK": "0", "MASTER_ADDR": "other", "MASTER_PORT": "1"}  # of a job whose worker types farandole run
    assert told(Settings(), outer) == everything
    alone = with_meeting(StartWorkers([]), ("box", "box"), Settings(), 7001, {})
    assert alone.environment["MASTER_ADDR"] == "127.0.0.1"


def test_a_place_that_was_named_stays() -> None:
    named = {"MASTER_ADDR": "other", "MASTER_PORT": "1"}
    assert "MASTER_ADDR" not in told(Settings(), named)
    assert told(Settings(), {"MASTER_ADDR": "other"})["MASTER_ADDR"] == "box", "half of it is of no use"


@pytest.mark.parametrize("settings", [Settings(min_np=1), Settings(horovod=True), Settings(torch_env=False)])
def test_scripts_that_would_be_led_astray_get_none(settings: Settings) -> None:
    assert not told(settings, {})


def test_without_a_free_port_there_is_no_place() -> None:
    assert "MASTER_PORT" not in told(Settings(), {}, port=0)
