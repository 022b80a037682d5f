"""Router and Dealer over real sockets: what comes through, what is refused, who is woken."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from farandole.control.addresses import free_port
from farandole.control.channel import Dealer, Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.messages import ENVELOPE_BYTES, LIMIT_BYTES, Abort, Leave, encode
from farandole.control.task_messages import TaskResult
from farandole.errors import ControlError, SettingsError
from tests.support.patience import PATIENCE_S
from tests.support.runtime.interruptions import within_deadline

DEADLINE_S = PATIENCE_S
KEYS = JobKeys.from_secret(new_secret())


class Host:
    """A router and the loop around it, in a thread: answers ``Leave`` with ``Abort``, to the sender and one more."""

    def __init__(self) -> None:
        self.also, self.delivered = b"", False
        self.router = Router(KEYS)
        self.address = self.router.address
        self._stop, self._stopped = os.pipe()
        self.router.watch(self._stop)
        self.inbox: list[tuple[bytes, object]] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while self._stop not in self.router.wait():
            while (got := self.router.recv()) is not None:
                self.inbox.append(got)
                if isinstance(got[1], Leave):
                    answer = Abort(got[1].generation, "left")
                    self.delivered = self.router.send(self.also or got[0], answer)
                    self.router.send(got[0], answer)
        self.router.unwatch(self._stop)
        self.router.close()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        with Dealer(self.address, b"probe", KEYS, timeout_s=DEADLINE_S) as probe:
            while not condition():
                assert time.monotonic() < deadline, self.router.statistics()
                probe.send(Leave(0))
                probe.recv(DEADLINE_S)

    def close(self) -> None:
        os.write(self._stopped, b"x")
        self.thread.join(DEADLINE_S)
        os.close(self._stop)
        os.close(self._stopped)


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def test_round_trip(host: Host) -> None:
    with Dealer(host.address, b"w0u", KEYS, DEADLINE_S) as dealer:
        dealer.send(Leave(3))
        assert dealer.recv(DEADLINE_S) == Abort(3, "left")
        assert dealer.recv(DEADLINE_S) == Abort(3, "left")
        assert dealer.recv(0.0) is None
    assert host.inbox == [(b"w0u", Leave(3))]


def test_identities_are_reachable_once_their_constructors_returned(host: Host) -> None:
    host.also = b"w0c"
    with Dealer(host.address, b"w0c", KEYS) as listener, Dealer(host.address, b"w0u", KEYS) as dealer:
        dealer.send(Leave(7))
        assert dealer.recv(DEADLINE_S) == listener.recv(DEADLINE_S) == Abort(7, "left")
        assert host.delivered


def test_sending_to_nobody_is_told_and_harmless(host: Host) -> None:
    host.also = b"nobody"
    with Dealer(host.address, b"w0u", KEYS) as dealer:
        dealer.send(Leave(7))
        assert dealer.recv(DEADLINE_S) == Abort(7, "left")
        assert not host.delivered


def test_after_a_flush_everything_has_been_received(host: Host) -> None:
    with Dealer(host.address, b"w0u", KEYS) as dealer:
        for n in range(100):
            dealer.send(TaskResult(n, True, bytes(100_000)))
        dealer.flush(DEADLINE_S)
        assert len(host.inbox) == 100


def test_large_messages_pass_and_larger_ones_are_refused_at_the_source(host: Host) -> None:
    with Dealer(host.address, b"w0u", KEYS) as dealer:
        payload = os.urandom(LIMIT_BYTES // 2)
        dealer.send(TaskResult(0, True, payload))
        host.until(lambda: (b"w0u", TaskResult(0, True, payload)) in host.inbox)
        with pytest.raises(ControlError, match="exceeds the limit"):
            dealer.send(TaskResult(0, True, bytes(LIMIT_BYTES)))


def test_random_bytes_are_dropped_counted_and_logged_once(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    port = int(host.address.rpartition(":")[2])
    zmtp = b"\xff" + bytes(8) + b"\x7f"
    with caplog.at_level(logging.WARNING, "farandole.control"):
        for start in (b"", zmtp, zmtp + b"\x03\x00CURVE" + bytes(47) + b"\x06" + b"\xff" * 8):
            for _ in range(3):
                _knock_as_a_stranger(port, start + os.urandom(4096))
        host.until(lambda: host.router.statistics().get("connections without this job's key") == 9)
    assert len(caplog.records) == 1


def test_connections_that_go_away_are_counted_and_not_worth_a_word(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(host.address.rpartition(":")[2])
    with caplog.at_level(logging.WARNING, "farandole.control"):
        for text in (b"", b"\xff" + bytes(8) + b"\x7f"):
            _knock_as_a_stranger(port, text)
        host.until(lambda: host.router.statistics().get("connections that went away") == 2)
    assert not caplog.records


def _knock_as_a_stranger(port: int, text: bytes) -> None:
    """Say ``text`` and no more, and wait to be turned away."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as stranger:
        stranger.sendall(text)
        with contextlib.suppress(OSError):  # it may be turned away before it has come to its end
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass


def _send_raw(host: Host, identity: bytes, *frames: bytes) -> None:
    """A client with the right keys that does not speak our protocol; returns once its frames are on the wire."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = int(DEADLINE_S * 1000)
        if identity:
            dealer.routing_id = identity
        dealer.curve_serverkey, dealer.curve_publickey = KEYS.server.public, KEYS.client.public
        dealer.curve_secretkey = KEYS.client.secret
        dealer.connect(host.address)
        for frame in frames:
            dealer.send(frame)


@pytest.mark.parametrize("mine", ["server", "client"])
def test_wrong_keys_are_refused_on_both_sides(host: Host, mine: str) -> None:
    other = JobKeys.from_secret(new_secret())
    mixed = JobKeys(KEYS.server, other.client) if mine == "server" else JobKeys(other.server, KEYS.client)
    with pytest.raises(ControlError, match="refused this process's key"):
        Dealer(host.address, b"w0u", mixed, timeout_s=DEADLINE_S)
    host.until(lambda: host.router.statistics().get("connections without this job's key", 0) >= 1)


@pytest.mark.parametrize(
    ("frame", "identity", "kind"),
    [
        (b"\xc1garbage", b"w9u", "frames that are no message"),
        (encode(Leave(1))[:-1], b"w9u", "frames that are no message"),
        (b"\x91" * 10_000_000, b"w9u", "frames that are no message"),
        (bytes(LIMIT_BYTES + ENVELOPE_BYTES + 1), b"w9u", "oversized frames"),
        (encode(Leave(1)), b"", "unknown identities"),
    ],
    ids=["garbage", "truncated", "nested", "oversized", "anonymous"],
)
def test_bad_frames_are_dropped_counted_and_logged_once(
    host: Host, caplog: pytest.LogCaptureFixture, frame: bytes, identity: bytes, kind: str
) -> None:
    with caplog.at_level(logging.WARNING, "farandole.control"):
        _send_raw(host, identity, frame, frame)
        host.until(lambda: host.router.statistics().get(kind, 0) >= 2)
    assert len(caplog.records) == 1
    assert not [m for i, m in host.inbox if i != b"probe"]


def test_no_controller_is_said_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ControlError, match="FARANDOLE_CONTROLLER"):
            Dealer(address, b"w0u", KEYS, timeout_s=0.2)
    with pytest.raises(ControlError, match="no address"):
        Dealer("nonsense", b"w0u", KEYS)


def test_messages_without_an_end_are_no_answer_to_a_knock() -> None:
    """The controller never reads what the worker knocks with, and sends all the time."""
    with Router(KEYS) as router, contextlib.ExitStack() as held:
        over = threading.Event()
        dealer = held.enter_context(Dealer(router.address, b"w0u", KEYS, None))
        while not router.send(b"w0u", Leave(1)):
            router.wait(0.1)

        def flood() -> None:
            while not over.is_set():
                router.send(b"w0u", Leave(1))

        def knock() -> None:
            with pytest.raises(ControlError, match="no controller answered"):
                dealer.flush(0.5)

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            within_deadline(knock, DEADLINE_S / 3)
        finally:
            over.set()
            flooding.join()


def test_receiver_learns_that_the_controller_is_gone() -> None:
    host = Host()
    with Dealer(host.address, b"w0c", KEYS) as dealer:
        host.close()
        with pytest.raises(ControlError, match="gone"):
            dealer.recv(DEADLINE_S)


def test_a_wait_may_be_longer_than_the_kernel_knows(host: Host) -> None:
    with Dealer(host.address, b"w0c", KEYS) as dealer:
        dealer.send(Leave(1))
        assert dealer.recv(1e9) == Abort(1, "left")
    reader, writer = os.pipe()
    with Router(KEYS) as router:
        router.watch(reader)
        os.close(writer)
        assert router.wait(1e9) == {reader}
    os.close(reader)


def test_interrupt_wakes_the_receiver(host: Host) -> None:
    dealer = Dealer(host.address, b"w0c", KEYS)
    answers: list[object] = []
    receiver = threading.Thread(target=lambda: answers.append(dealer.recv()))
    receiver.start()
    dealer.interrupt()
    receiver.join(DEADLINE_S)
    assert answers == [None]
    assert dealer.interrupted
    assert dealer.recv(DEADLINE_S) is None
    dealer.close()
    dealer.close()
    with pytest.raises(ControlError, match="close"):
        dealer.send(Leave(0))


def test_who_was_refused_before_it_knocks_is_told_so_too(host: Host) -> None:
    mixed = JobKeys(KEYS.server, JobKeys.from_secret(new_secret()).client)
    with Dealer(host.address, b"w0u", mixed, None) as dealer:
        with pytest.raises(ControlError, match="refused this process's key"):
            dealer.recv(DEADLINE_S)
        dealer.send(Leave(1))  # there is nobody to send it to
        with pytest.raises(ControlError, match="refused this process's key"):
            dealer.flush(DEADLINE_S)


def test_what_is_sent_after_an_interrupted_knock_is_delivered() -> None:
    with Router(KEYS) as router, Dealer(router.address, b"w0u", KEYS, None) as dealer:
        dealer.interrupt()  # while the controller has not yet let it in
        with pytest.raises(ControlError, match="no controller answered"):
            dealer.flush(DEADLINE_S)
        dealer.send(Leave(1))
        closing = threading.Thread(target=dealer.close)
        closing.start()
        received, deadline = None, time.monotonic() + DEADLINE_S
        while received is None and time.monotonic() < deadline:
            router.wait(0.1)
            received = router.recv()
        closing.join()
    assert received == (b"w0u", Leave(1))


def test_a_loop_of_ones_own_is_woken_although_sending_took_in_the_signal(host: Host) -> None:
    with Dealer(host.address, b"peer", KEYS, timeout_s=DEADLINE_S) as dealer:
        socket_fd = dealer.fds[0]
        assert dealer.recv(0.0) is None
        dealer.send(Leave(7))
        assert select.select(dealer.fds, [], [], DEADLINE_S)[0]  # perhaps sending has taken in the signal already
        while select.select([socket_fd], [], [], 0)[0]:  # until what has come is known to the socket
            dealer.send(Leave(8))
        got: list[object] = []
        while len(got) < 2:  # one answer to each Leave goes to the sender, and one to whoever also wants it: it again
            assert select.select(dealer.fds, [], [], DEADLINE_S)[0], f"only {got} came"
            while (message := dealer.recv(0.0)) is not None:
                got.append(message)
        assert isinstance(got[0], Abort)


def test_many_senders_and_a_receiver_on_one_dealer_lose_nothing(host: Host) -> None:
    def send_many(base: int) -> None:
        for n in range(500):
            dealer.send(Leave(base + n))

    with Dealer(host.address, b"w0u", KEYS) as dealer:
        senders = [threading.Thread(target=send_many, args=(base,)) for base in (0, 500, 1000)]
        for sender in senders:
            sender.start()
        seen = {getattr(dealer.recv(DEADLINE_S), "generation", None) for _ in range(3000)}
        for sender in senders:
            sender.join(DEADLINE_S)
    assert seen == set(range(1500))


def test_connecting_again_and_again_grows_nothing(host: Host) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    Dealer(host.address, b"w", KEYS).close()
    before = held()
    for n in range(50):
        with Dealer(host.address, b"w%d" % n, KEYS) as dealer:
            dealer.send(Leave(n))
            assert dealer.recv(DEADLINE_S) == Abort(n, "left")
    host.until(lambda: len(os.listdir("/proc/self/task")) <= before[1] + 2)
    assert held()[0] <= before[0] + 2


def test_a_knock_of_the_router_tells_who_is_there_and_nobody_notices() -> None:
    with Router(KEYS) as router:
        assert not router.reaches(b"w0c")
        with contextlib.ExitStack() as held:
            dealing = threading.Thread(
                target=lambda: held.enter_context(Dealer(router.address, b"w0c", KEYS, DEADLINE_S)).recv(DEADLINE_S)
            )
            dealing.start()
            while not router.reaches(b"w0c"):
                router.wait(0.1)
                router.recv()
            assert router.send(b"w0c", Leave(1))
            dealing.join(DEADLINE_S)
            assert not dealing.is_alive()
        while router.reaches(b"w0c"):
            router.wait(0.1)
            router.recv()


def test_a_flood_of_strangers_beyond_the_soft_limit_keeps_no_worker_out() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, before[1]))
    try:
        host = Host()  # raises it
        with contextlib.closing(host), contextlib.ExitStack() as held:
            for _ in range(300):
                held.enter_context(socket.create_connection(("127.0.0.1", int(host.address.rpartition(":")[2]))))
            with Dealer(host.address, b"w0u", KEYS, DEADLINE_S) as dealer:
                dealer.send(Leave(3))
                assert dealer.recv(DEADLINE_S) == Abort(3, "left")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_who_hangs_up_in_the_handshake_may_have_no_room() -> None:
    with socket.create_server(("127.0.0.1", 0)) as full:

        def hang_up() -> None:
            full.accept()[0].close()

        hangs_up = threading.Thread(target=hang_up)
        hangs_up.start()
        with pytest.raises(ControlError, match=r"broke the handshake off: .*FARANDOLE_KEY.*, or has no descriptor"):
            Dealer(f"tcp://127.0.0.1:{full.getsockname()[1]}", b"w0u", KEYS, DEADLINE_S)
        hangs_up.join(DEADLINE_S)


def test_a_controller_listens_at_a_free_port_of_a_range() -> None:
    first = free_port()
    last = min(first + 50, 65535)
    with Router(KEYS, f"tcp://127.0.0.1:{first}-{last}") as one, Router(KEYS, f"tcp://127.0.0.1:{first}-{last}") as two:
        ports = [int(router.address.rpartition(":")[2]) for router in (one, two)]
        assert ports[0] != ports[1]
        assert all(first <= port <= last for port in ports)
        with pytest.raises(ControlError, match=rf"cannot listen at .*{ports[0]}-{ports[0]}: Address already in use"):
            Router(KEYS, f"tcp://127.0.0.1:{ports[0]}-{ports[0]}")
    with pytest.raises(SettingsError, match=r"--ports 9-8: write FIRST-LAST, of ports from 1 to 65535"):
        Router(KEYS, "tcp://127.0.0.1:9-8")
