"""What a worker hears of its controller while its session is being made."""

from __future__ import annotations

import select
from concurrent.futures import ThreadPoolExecutor

import pytest

from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.messages import Abort
from farandole.errors import AbortError
from farandole.runtime.session.link import Assignment, Link
from farandole.runtime.session.session import Session
from farandole.settings import Settings
from farandole.topology import Topology


def _connected(router: Router, secret: str) -> Link:
    with ThreadPoolExecutor(1) as other_thread:
        made = other_thread.submit(Link, Assignment(0, 2, "a", router.address, secret), 30.0)
        while not made.done():
            router.wait(0.1)
            router.recv()
    return made.result()


def test_an_end_that_is_there_before_the_session_is_heard() -> None:
    secret = new_secret()
    settings = Settings(stall_shutdown_s=20.0)
    with Router(JobKeys.from_secret(secret)) as router:
        for _ in range(10):
            link = _connected(router, secret)
            assert link.control.recv(0.0) is None  # only a reader that has found nothing is woken
            router.send(link.worker.encode() + b"c", Abort(1, "rank 1 on a was killed"))
            assert select.select(link.control.fds, [], [], 30)[0]
            with pytest.raises(AbortError, match="was killed"):
                Session(settings, Topology.of(0, ("a", "a"), 1), "shm", "", [], link)
