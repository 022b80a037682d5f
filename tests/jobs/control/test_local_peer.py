"""Sockets in the abstract namespace, and another user who has seen their names."""

from __future__ import annotations

import concurrent.futures
import os
import socket
from contextlib import ExitStack

import pytest

from farandole.control.addresses import own_host_only
from farandole.control.channel import Dealer, Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.local_peer import is_own, user_of
from farandole.control.messages import Leave
from farandole.errors import StartError
from farandole.runtime.selfstart.host_socket import claim, name_of, receive_address, send_address
from tests.support.patience import PATIENCE_S
from workbench.attacks.other_user import CALL, NOBODY, SQUAT, is_possible, other_user

pytestmark = pytest.mark.skipif(not is_possible(), reason="only root can make a process of another user")

NAME = name_of("aa" * 32, "a", f"tcp://10.0.0.1:{os.getpid()}")


def test_the_kernel_says_whose_process_is_at_the_other_end() -> None:
    with other_user(SQUAT, NAME.hex()), socket.socket(socket.AF_UNIX) as asking:
        asking.connect(NAME)
        assert (user_of(asking), is_own(asking)) == (NOBODY, False)
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as asking:
        listening.bind(NAME)
        listening.listen()
        asking.connect(NAME)
        assert (user_of(asking), is_own(asking)) == (os.geteuid(), True)


def test_a_host_whose_name_another_user_has_is_refused_at_once_with_who_it_is() -> None:
    with (
        other_user(SQUAT, NAME.hex()),
        pytest.raises(StartError, match=f"user {NOBODY} has .* Set another"),
    ):
        receive_address(NAME, "a", PATIENCE_S)


def test_a_host_tells_nobody_else() -> None:
    with claim(NAME) as claimed:
        assert claimed is not None
        with other_user(CALL, NAME.hex(), "3"), concurrent.futures.ThreadPoolExecutor(1) as other_thread:
            asked = other_thread.submit(receive_address, NAME, "a", PATIENCE_S)
            for _ in range(4):
                send_address(claimed, "tcp://127.0.0.1:7000")
            assert asked.result(PATIENCE_S) == "tcp://127.0.0.1:7000"


def test_connections_of_other_users_cost_the_controller_nothing() -> None:
    """Each stayed open for half a minute, the time in which a peer has to show its key."""
    keys = JobKeys.from_secret(new_secret())
    with ExitStack() as held:
        router = held.enter_context(Router(keys, own_host_only()))
        before = len(os.listdir("/proc/self/fd"))
        name = b"\0" + router.address.removeprefix("ipc://@").encode()
        held.enter_context(other_user(CALL, name.hex(), "50"))
        with concurrent.futures.ThreadPoolExecutor(1) as other_thread:
            coming = other_thread.submit(Dealer, router.address, b"worker-0u", keys, PATIENCE_S)
            while not coming.done():
                router.wait(0.01)
                router.recv()
        dealer = held.enter_context(coming.result())
        dealer.send(Leave(generation=1))
        while (got := router.recv()) is None:
            router.wait(PATIENCE_S)
        assert got == (b"worker-0u", Leave(generation=1))
        assert len(os.listdir("/proc/self/fd")) < before + 50
