"""How processes find their controller, and how one of each host becomes its agent's parent."""

from __future__ import annotations

import concurrent.futures
import os
import socket
from pathlib import Path

import pytest

from farandole.cluster.contact import Contact, Meeting
from farandole.cluster.slurm import Slurm
from farandole.control.addresses import free_port
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.errors import ControlError, StartError
from farandole.runtime.selfstart.host_socket import claim, name_of, receive_address, send_address
from farandole.runtime.session import rendezvous
from farandole.runtime.session.rendezvous import ProcessRole, find_controller
from farandole.settings import Settings
from tests.support.patience import PATIENCE_S

TASK = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
}  # fmt: skip


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a job that this process has not found yet."""
    monkeypatch.setattr(rendezvous, "_found", {})
    return new_secret()


def test_what_an_earlier_job_has_left_is_given_up_for_what_rank_0_says_now(
    tmp_path: Path, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "DIAL_S", 0.5)
    environment, settings = Slurm({**TASK, "SLURM_JOB_ID": "8"}), Settings(rendezvous_dir=str(tmp_path))
    file = environment.file(Meeting(str(tmp_path), 1.0))
    stale = [f"tcp://127.0.0.{host}:{free_port()}" for host in (1, 2)]
    file.share(Contact(stale, new_secret()), 1.0)
    with Router(JobKeys.from_secret(secret)) as router, concurrent.futures.ThreadPoolExecutor(1) as other_thread:
        assignment = other_thread.submit(find_controller, environment, ProcessRole(1, 2), settings)
        file.share(Contact([router.address], secret), 1.0)
        assert (assignment.result(PATIENCE_S).controller, assignment.result().key) == (router.address, secret)
        file.path.unlink()
        assert find_controller(environment, ProcessRole(1, 2), settings) == assignment.result()  # it is found once


def test_a_controller_that_answers_nobody_is_named(tmp_path: Path, secret: str) -> None:
    environment = Slurm({**TASK, "SLURM_JOB_ID": "9", "FARANDOLE_KEY": secret})
    addresses = [f"tcp://127.0.0.{host}:{free_port()}" for host in (1, 2)]
    environment.file(Meeting(str(tmp_path), 1.0)).share(Contact(addresses, ""), 1.0)
    settings = Settings(rendezvous_dir=str(tmp_path), start_timeout_s=0.3)
    with pytest.raises(
        StartError, match=f"rank 1 on .* cannot join the job: .*{addresses[0]}, {addresses[1]}"
    ) as caught:
        find_controller(environment, ProcessRole(1, 2), settings)
    assert isinstance(caught.value.__cause__, ControlError)


def test_one_process_of_a_host_has_the_name_and_answers_the_others(secret: str) -> None:
    name, elsewhere_name = name_of(secret, "a", "tcp://10.0.0.1:7000"), name_of(secret, "b", "tcp://10.0.0.1:7000")
    with claim(name) as first, claim(name) as second, claim(elsewhere_name) as elsewhere:
        assert isinstance(first, socket.socket)
        assert second is None
        assert elsewhere is not None
        with concurrent.futures.ThreadPoolExecutor(1) as other_thread:
            asked = other_thread.submit(receive_address, name, "a", 30.0)
            send_address(first, "tcp://127.0.0.1:7000")
            assert asked.result(PATIENCE_S) == "tcp://127.0.0.1:7000"
        with pytest.raises(StartError, match=r"agent of host a, .* did not say within 0\.1 s .* --start-timeout"):
            receive_address(name, "a", 0.1)
    with claim(name) as again:
        assert again is not None
        inherited = os.dup(again.fileno())
    try:
        with claim(name) as other:
            assert other is None
    finally:
        os.close(inherited)


def test_the_name_of_a_host_is_found_from_any_address_of_the_controller_and_is_another_for_each_job(
    secret: str,
) -> None:
    names = {
        name_of(secret, "a", address)
        for address in ("tcp://0.0.0.0:7000", "tcp://10.0.0.1:7000", "tcp://[fd00::1]:7000", "tcp://node1:7000")
    }
    assert len(names) == 1
    assert name_of(secret, "a", "tcp://10.0.0.1:7001") not in names
