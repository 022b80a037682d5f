"""The line between a launcher and its controller: nothing is lost, however much is said before anybody listens."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from farandole.launch.job.launcher_pipe import AgentSaid, LauncherPipe, PipeClosed, StartAgent
from tests.support.launch.running import DEADLINE_S

HOSTS = [f"node{number}" for number in range(2000)]
"""Far more than the kernel keeps messages for one that does not listen."""


@pytest.fixture
def ends() -> Iterator[tuple[LauncherPipe, LauncherPipe]]:
    """That of the launcher, and that of the controller."""
    ours, theirs = LauncherPipe.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


def is_readable(line: LauncherPipe) -> bool:
    poll = select.poll()
    poll.register(line.fd, select.POLLIN)
    return bool(poll.poll(DEADLINE_S * 1000))


def test_a_controller_may_send_for_agents_on_thousands_of_hosts_at_once(
    ends: tuple[LauncherPipe, LauncherPipe],
) -> None:
    ours, theirs = ends
    wanted = [StartAgent(host, f"{host}/1") for host in HOSTS]

    def speak() -> None:
        for each in wanted:
            theirs.send(each)

    speaker = threading.Thread(target=speak)
    speaker.start()
    heard: list[object] = []
    while len(heard) < len(wanted) and is_readable(ours):
        heard += ours.receive()
    speaker.join()
    assert heard == wanted


def test_a_launcher_does_not_wait_for_a_controller_that_does_not_listen(
    ends: tuple[LauncherPipe, LauncherPipe],
) -> None:
    ours, theirs = ends
    news = [AgentSaid(f"{host}/1", "Permission denied") for host in HOSTS]
    for each in news:
        ours.send(each)
    assert ours.is_behind
    heard: list[object] = []
    while len(heard) < len(news) and is_readable(theirs):
        heard += theirs.receive()
        ours.flush()
    assert heard == news
    assert not ours.is_behind


def test_what_is_said_to_nobody_is_not_kept(ends: tuple[LauncherPipe, LauncherPipe]) -> None:
    ours, theirs = ends
    for host in HOSTS:
        ours.send(AgentSaid(f"{host}/1", "Permission denied"))
    theirs.close()
    ours.flush()
    assert not ours.is_behind
    assert [type(each) for each in ours.receive()] == [PipeClosed]
