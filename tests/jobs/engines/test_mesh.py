"""How members connect to each other: nobody else gets in, and who cannot come is named to all."""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from typing import Any

import msgspec
import pytest

from farandole.engines import mesh, reach
from farandole.engines.engine import Exchange, Group
from farandole.errors import AbortError, EngineError, StallError

Connections = dict[int, socket.socket]
WAIT_S = 60.0


class Table:
    """The exchange of members which are threads; ``between`` is called before the round after the places are known."""

    def __init__(self, size: int, between: Callable[[list[Any]], object] = lambda _: None) -> None:
        self._said: list[list[bytes]] = []
        self._size, self._between = size, between
        self._barrier = Barrier(size)

    def exchange(self, rank: int) -> Exchange:
        rounds = iter(range(1000))

        def say(payload: bytes) -> list[bytes]:
            now = next(rounds)
            if rank == 0:
                self._said.append([b""] * self._size)
                if now == 1:
                    self._between([msgspec.msgpack.decode(each) for each in self._said[0]])
            self._barrier.wait(WAIT_S)
            self._said[now][rank] = payload
            self._barrier.wait(WAIT_S)
            return self._said[now]

        return say


def connecting(
    size: int, between: Callable[[list[Any]], object] = lambda _: None, **group: Any
) -> list[Future[Connections]]:
    """All members at once, each in its thread, when they are done."""
    table = Table(size, between)
    members = Group(0, tuple(range(size)), ("here",) * size, 1, "lane", 20.0)
    with ThreadPoolExecutor(size) as pool:
        return [
            pool.submit(mesh.connect, dataclasses.replace(members, rank=rank, **group), table.exchange(rank))
            for rank in range(size)
        ]


@contextlib.contextmanager
def connected(found: list[Future[Connections]]) -> Iterator[list[Connections]]:
    members = [each.result() for each in found]
    yield members
    for connections in members:
        for connection in connections.values():
            connection.close()


def require_a_mesh(members: list[Connections]) -> None:
    """Each two are connected, and by one connection."""
    for rank, connections in enumerate(members):
        assert sorted(connections) == [other for other in range(len(members)) if other != rank]
        for other, connection in connections.items():
            assert connection.getsockname() == members[other][rank].getpeername()
            assert connection.gettimeout() == 0.0


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_each_two_members_get_one_connection(size: int) -> None:
    with connected(connecting(size)) as members:
        require_a_mesh(members)


def test_nobody_else_gets_in() -> None:
    """One that says nothing, noise, a member's name without the key, and one that hangs up."""
    strangers: list[socket.socket] = []

    def call(places: list[Any]) -> None:
        for said in (b"", b"GET / HTTP/1.1\r\n" * 10, mesh._GREETING.pack(2, b"?" * 32), mesh._GREETING.pack(7, b"")):
            for address, port, *_ in places:
                strangers.append(socket.create_connection((address, port)))
                strangers[-1].sendall(said)
        strangers.pop().close()

    with connected(connecting(3, call)) as members:
        require_a_mesh(members)
        for stranger in strangers:
            stranger.settimeout(WAIT_S)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""  # not a word was said to it
            stranger.close()


def crowded(
    size: int, knock: Callable[[tuple[str, int]], object], after: Callable[[], object] = lambda: None
) -> list[Future[Connections]]:
    """Members that connect after ``knock`` was called with the place of rank 0, which listens by then.

    ``after`` is called by rank 0 when all have called, before it accepts the first.
    """
    table, strangers_came = Table(size), Barrier(size)
    members = Group(0, tuple(range(size)), ("here",) * size, 1, "lane", 20.0)

    def exchange(rank: int) -> Exchange:
        say, rounds = table.exchange(rank), iter(range(1000))

        def said(payload: bytes) -> list[bytes]:
            heard, now = say(payload), next(rounds)
            if now == 0:
                if rank == 0:
                    address, port, *_ = msgspec.msgpack.decode(heard[0])
                    knock((address, port))
                strangers_came.wait(WAIT_S)
            elif rank == 0:
                after()
            return heard

        return said

    with ThreadPoolExecutor(size) as pool:
        return [
            pool.submit(mesh.connect, dataclasses.replace(members, rank=rank), exchange(rank)) for rank in range(size)
        ]


@contextlib.contextmanager
def spare_descriptors(number: int) -> Iterator[None]:
    """This process has ``number`` more descriptors than it uses now."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open("/dev/null") as highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno() + 1 + number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("most", [8, 512], ids=["bound", "descriptors"])
@pytest.mark.parametrize("said", [b"", b"GET /"], ids=["nothing", "a part of a greeting"])
def test_a_crowd_that_came_first_keeps_no_member_out_and_uses_up_no_descriptors(
    most: int, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 strangers stay and say nothing; room is for 8 of them, or for as many as there are descriptors left."""
    monkeypatch.setattr(mesh, "_MOST_UNKNOWN", most)
    monkeypatch.setattr(mesh, "_GREETING_S", 0.05)
    with contextlib.ExitStack() as crowd:

        def knock(place: tuple[str, int]) -> None:
            for _ in range(100):
                crowd.enter_context(socket.create_connection(place)).sendall(said)

        def after() -> None:
            crowd.enter_context(spare_descriptors(20))

        with connected(crowded(3, knock, after)) as members:
            require_a_mesh(members)


def test_members_that_have_called_are_not_late_however_short_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their greetings are there before the first of them is accepted: none can be taken for a silent stranger."""
    monkeypatch.setattr(mesh, "_MOST_UNKNOWN", 1)
    monkeypatch.setattr(mesh, "_GREETING_S", 0.0)
    with contextlib.ExitStack() as crowd:
        knock = lambda place: [crowd.enter_context(socket.create_connection(place)) for _ in range(30)]  # noqa: E731
        with connected(crowded(8, knock)) as members:
            require_a_mesh(members)


def test_nobody_is_turned_away_because_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that greets late, seven who say nothing, and a hundred noisy ones who use the place of one of them."""
    monkeypatch.setattr(mesh, "_MOST_UNKNOWN", 8)
    monkeypatch.setattr(mesh, "_GREETING_S", WAIT_S)
    group = Group(0, (0, 1), ("here", "here"), 1, "lane", WAIT_S)
    place: Future[Any] = Future()

    def exchange(payload: bytes) -> list[bytes]:
        if not place.done():
            place.set_result(msgspec.msgpack.decode(payload))
        return [payload, payload]

    with contextlib.ExitStack() as crowd, ThreadPoolExecutor(1) as pool:
        found = pool.submit(mesh.connect, group, exchange)
        address, port, key, _ = place.result(WAIT_S)
        late, gone, *_ = [crowd.enter_context(socket.create_connection((address, port), WAIT_S)) for _ in range(8)]
        noisy = [crowd.enter_context(socket.create_connection((address, port), WAIT_S)) for _ in range(100)]
        for each in noisy:
            each.sendall(b"?" * 36)
        gone.close()
        assert [each.recv(1) for each in noisy] == [b""] * 100
        late.sendall(mesh._GREETING.pack(1, mesh._digest(1, key)))
        with connected([found]) as [connections]:
            assert connections[1].getpeername() == late.getsockname()


def test_a_member_does_not_get_in_a_second_time() -> None:
    again: list[socket.socket] = []

    def call(places: list[Any]) -> None:
        (address, port, key, _), *_ = places
        for _ in range(2):
            again.append(socket.create_connection((address, port)))
            again[-1].sendall(mesh._GREETING.pack(1, mesh._digest(1, key)))

    first, second = connecting(2, call)
    [connection] = first.result().values()
    with connection:
        taken = connection.getpeername()
        rejected = [caller for caller in again if caller.getsockname() != taken]
        for caller in rejected:
            caller.settimeout(WAIT_S)
            with contextlib.suppress(ConnectionResetError):
                assert caller.recv(100) == b""
    for caller in again:
        caller.close()
    if len(rejected) < len(again):  # which of those with the key came first
        with pytest.raises(
            EngineError, match="the connection to rank 0 on here was lost while lane was being connected"
        ):
            second.result()
    else:
        [own] = second.result().values()
        own.close()


def test_who_cannot_listen_is_named_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "LOOPBACK", "192.0.2.1")  # which is nobody's address
    for each in connecting(2):
        with pytest.raises(EngineError, match=r"not all of .* rank 0 on here cannot listen at 192.0.2.1: .*assign"):
            each.result()


@pytest.mark.parametrize(
    ("address", "why"),
    [("127.0.0.1", "Connection refused"), ("224.0.0.1", "Network is unreachable")],  # the kernel says this at once
)
def test_who_is_not_reached_is_named_on_all_and_told_to_the_controller(
    address: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "reachable_address", lambda *_: "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    def misled(said: Exchange) -> Exchange:
        """What rank 1 hears: rank 0 listens where nobody does."""
        firsts = iter((True,))

        def say(payload: bytes) -> list[bytes]:
            other, mine = said(payload)
            return [msgspec.msgpack.encode([address, port, b"", ""]) if next(firsts, False) else other, mine]

        return say

    table = Table(2)
    told: tuple[list[str], list[str]] = [], []
    members = [Group(rank, (0, 1), ("a", "b"), 1, "lane", on_silence=told[rank].append) for rank in range(2)]
    exchanges = [table.exchange(0), misled(table.exchange(1))]
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(mesh.connect, *each) for each in zip(members, exchanges, strict=True)]
    for each in found:
        with pytest.raises(EngineError, match=f"others. rank 1 on b does not reach rank 0 on a: {why}$"):
            each.result()
    assert told == (["b"], ["a"])


def test_the_end_of_the_generation_ends_it() -> None:
    group = Group(1, (0, 1), ("here", "here"), 1, "lane", 20.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = msgspec.msgpack.encode(["127.0.0.1", silent.getsockname()[1], b"k", ""])

        def exchange(payload: bytes) -> list[bytes]:
            if payload == msgspec.msgpack.encode({}):
                group.broken.set()
            return [payload if payload == msgspec.msgpack.encode({}) else mute, payload]

        with pytest.raises(AbortError, match="the generation ended while lane was being connected"):
            mesh.connect(group, exchange)


def test_who_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "CONNECT_S", 0.05)
    group = Group(1, (0, 1), ("here", "here"), 1, "lane", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = msgspec.msgpack.encode(["127.0.0.1", silent.getsockname()[1], b"k", ""])
        answers = iter((mute, msgspec.msgpack.encode({})))
        with pytest.raises(StallError, match="rank 0 on here did not answer while lane was being connected"):
            mesh.connect(group, lambda payload: [next(answers), payload])


def test_a_member_listens_at_a_free_port_of_the_range_for_other_hosts() -> None:
    with mesh._server("127.0.0.2", "") as one:
        taken = one.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use"):
            mesh._server("127.0.0.2", f"{taken}-{taken}")
        with mesh._server("127.0.0.1", f"{taken}-{taken}") as here:
            assert here.getsockname()[1] != taken, "no firewall is on the way"
        first = max(1024, taken - 50)
        with mesh._server("127.0.0.2", f"{first}-{taken}") as other:
            assert first <= other.getsockname()[1] < taken
