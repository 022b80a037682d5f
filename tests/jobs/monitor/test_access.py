"""Access to the live page of a real job: who gets in, what shows the key, and what strangers can do to it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import struct
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import msgspec
import psutil
import pytest

from farandole.control.monitor_messages import MODULE
from farandole.errors import UsageError
from farandole.monitor.access import PageKeys, Role, listening
from farandole.monitor.server import MOST_CONNECTIONS, ViewerOrder
from tests.support.monitor.page import LiveRun, until
from tests.support.patience import PATIENCE_S

BAD_MESSAGES = 10_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    started = LiveRun(tmp_path_factory.mktemp("live"), ["-np", "2"])
    yield started
    started.close()


@final
class Stranger:
    """A WebSocket by hand: what it sends need be no message, and it reads its answers when it wants to."""

    def __init__(self, address: str, query: str = "") -> None:
        host, port = address.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._file = self._socket.makefile("rb")
        lines = [f"GET /socket{query} HTTP/1.1", "Host: a", "Upgrade: websocket", "Connection: Upgrade"]
        lines += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13", "", ""]
        self._socket.sendall("\r\n".join(lines).encode())
        while self._file.readline().strip():
            pass

    def say(self, text: str) -> None:
        payload = text.encode()
        length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack(">H", len(payload))
        self._socket.sendall(b"\x81" + length + bytes(4) + payload)

    def hear(self) -> list[Any] | int:
        """The next messages, or the code of the end."""
        kind, length = self._file.read(2)
        if length >= 126:
            length = int.from_bytes(self._file.read(2 if length == 126 else 8), "big")
        payload = self._file.read(length)
        if kind & 15 == 8:
            return int.from_bytes(payload[:2], "big")
        found: list[Any] = json.loads(payload)
        return found

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shown(run: LiveRun, first: str, query: str = "", then: str = "") -> tuple[list[Any], int]:
    """Messages of a connection that begins with ``first``, up to an answer to ``then``; or the code of its end."""
    seen: list[Any] = []
    with Stranger(run.address, query) as stranger:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before it has said anything
            stranger.say(first)
        while True:
            heard = stranger.hear()
            if isinstance(heard, int):
                return seen, heard
            seen += heard
            if any(each["t"] in ("refused", "ordered", "pong") for each in heard):
                return seen, 0
            if then and any(each["t"] == "ready" for each in heard):
                stranger.say(then)


def test_only_the_key_opens_the_page(run: LiveRun) -> None:
    good = json.dumps({"key": run.key})
    seen, _ = shown(run, good, then='{"t":"ping"}')
    assert {each["t"] for each in seen} >= {"hello", "run", "members", "ready"}
    for first, query in (
        ('{"key": ""}', ""),
        (json.dumps({"key": run.key[:-1] + "x" * (run.key[-1] != "x")}), ""),
        (json.dumps({"key": run.key, "more": 1}), ""),
        (json.dumps([run.key]), ""),
        (run.key, ""),
        ('{"key": ""}', f"?key={run.key}"),
        (good, f"?key={run.key}"),
    ):
        seen, code = shown(run, first, query)
        assert (seen, code) in (([], 4401), ([], 4403)), (first, query)


def test_the_second_key_looks_and_orders_nothing(run: LiveRun) -> None:
    seen, _ = shown(run, json.dumps({"key": run.key}), then='{"t":"ping"}')
    look = seen[0]["look"].removeprefix("#key=")
    order = '{"t":"order","verb":"stop"}'
    seen, _ = shown(run, json.dumps({"key": look}), then=order)
    assert (seen[0]["role"], seen[0]["orders"], "look" in seen[0]) == ("look", False, False)
    assert seen[-1] == {"t": "refused", "text": "this link is view-only"}
    assert post(run, look) == 403


def post(run: LiveRun, key: str, body: bytes = b'{"t":"order","verb":"resume"}') -> int:
    request = urllib.request.Request(f"{run.address}/order", data=body)
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)


def test_orders_by_post_need_the_key_as_well(run: LiveRun) -> None:
    assert post(run, "") == 403
    assert post(run, "wrong") == 403
    assert post(run, run.key) == 200
    assert post(run, run.key, b"nonsense") == 400
    assert post(run, run.key, b"x" * 10**5) in (400, 413)
    assert msgspec.json.decode(b'{"t":"order","verb":"stop-trial"}', type=ViewerOrder).argument == -1, "not trial 0"
    assert ViewerOrder("stop-trial", workers=3, trial=5).argument == 5
    assert ViewerOrder("scale", workers=2, trial=5).argument == 2


def test_the_page_runs_no_script_but_its_own(run: LiveRun) -> None:
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/live.css", "text/css")):
        with urllib.request.urlopen(f"{run.address}{path}", timeout=PATIENCE_S) as answer:
            assert kind in answer.headers["Content-Type"]
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert (answer.headers["X-Content-Type-Options"], answer.headers["Referrer-Policy"]) == (
                "nosniff",
                "no-referrer",
            )
            assert run.key not in answer.read().decode()
    for path in ("/../server.py", "/%2e%2e/server.py", "/server.py", "/socket/x"):
        with pytest.raises(urllib.error.HTTPError, match="404") as raised:
            urllib.request.urlopen(f"{run.address}{path}", timeout=PATIENCE_S)
        raised.value.close()


def test_the_key_is_in_no_process_list_no_log_and_no_record(run: LiveRun) -> None:
    key = run.key.encode()
    pids = [run.process.pid, *descendants(run.process.pid)]
    assert len(pids) >= 4
    for pid in pids:
        for what in ("cmdline", "environ"):
            assert key not in Path(f"/proc/{pid}/{what}").read_bytes()
    assert run.key not in run.said
    with_key = [path for path in run.record.rglob("*") if path.is_file() and key in path.read_bytes()]
    assert with_key == [run.record / "live.link"]
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in run.record.rglob("*"))


def test_it_listens_on_the_loopback_alone(run: LiveRun) -> None:
    [monitor] = [
        pid for pid in descendants(run.process.pid) if b"farandole.monitor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    links = []
    for each in Path(f"/proc/{monitor}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of a request which is over by now
            links.append(os.readlink(each))
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    mine = {row[1].split(":")[0] for row in rows if row[9] in inodes and row[3] == "0A"}
    assert mine == {socket.inet_aton("127.0.0.1")[::-1].hex().upper()}


def descendants(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout.split()[2:]
    pairs = list(zip(map(int, found[::2]), map(int, found[1::2]), strict=True))
    mine = [pid]
    for parent in mine:
        mine += [child for child, of in pairs if of == parent]
    return [each for each in mine[1:] if Path(f"/proc/{each}").exists() and Path(f"/proc/{each}/cmdline").read_bytes()]


def test_ten_thousand_bad_messages_do_no_harm(run: LiveRun) -> None:
    order = '{"t":"order","verb":"stop"}'  # after the first bad message even this is read no more
    junk = ["", "{", "[]", '{"key": 5}', order, "\x00" * 900, '{"t":"ranks","ranks":["a"]}', "9" * 4000]

    def flood(number: int) -> int:
        sent = 0
        with Stranger(run.address) as stranger, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if number % 2:
                stranger.say(json.dumps({"key": run.key}))
                stranger.say("no message")
            for i in range(100):
                stranger.say(junk[(number + i) % len(junk)])
                sent += 1
        return sent

    before, sent = last_step(run), 0
    for number in range(BAD_MESSAGES):
        sent += flood(number)
        if sent >= BAD_MESSAGES:
            break
    assert sent >= BAD_MESSAGES
    seen, _ = shown(run, json.dumps({"key": run.key}), then='{"t":"ping"}')
    assert any(each["t"] == "ready" for each in seen)
    until(lambda: last_step(run) > before, "for more steps")
    assert run.process.poll() is None
    assert "Traceback" not in run.said


def last_step(run: LiveRun) -> int:
    return max((int(line.split("step ")[1].split()[0]) for line in run.said.splitlines() if "step " in line), default=0)


def test_silent_connections_use_up_no_descriptors_and_keep_nobody_out(run: LiveRun) -> None:
    [monitor] = [each for each in psutil.Process(run.process.pid).children(True) if MODULE in each.cmdline()]
    host, port = run.address.removeprefix("http://").split(":")
    with contextlib.ExitStack() as held, Stranger(run.address) as viewer:
        viewer.say(json.dumps({"key": run.key}))
        assert viewer.hear() != 4401
        before = monitor.num_fds()
        for _ in range(3 * MOST_CONNECTIONS):
            held.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
        seen, code = shown(run, json.dumps({"key": run.key}), then='{"t":"ping"}')  # by then all of them are accepted
        assert code == 0
        assert seen[0]["role"] == "control"
        assert monitor.num_fds() <= before + MOST_CONNECTIONS + 1
        viewer.say('{"t":"ping"}')  # who has a key is not cut off for others
        while not any(each["t"] == "pong" for each in _messages(viewer)):
            pass


def _messages(viewer: Stranger) -> list[Any]:
    heard = viewer.hear()
    assert not isinstance(heard, int)
    return heard


def test_keys_are_compared_whole_and_addresses_that_others_reach_need_a_certificate(tmp_path: Path) -> None:
    keys = PageKeys.new()
    control, look = (keys.fragment(role).removeprefix("#key=") for role in (Role.CONTROL, Role.LOOK))
    assert len(control) == len(look) >= 43
    assert (keys.role(control), keys.role(look)) == (Role.CONTROL, Role.LOOK)
    assert [keys.role(wrong) for wrong in ("", control[:-1], control + "x", None, 5, [control], "\ud800")] == [None] * 7
    assert control not in repr(keys)
    assert listening("localhost:8899", "")[:2] == ("localhost", 8899)
    assert listening("[::1]:1", "")[:2] == ("::1", 1)
    for wrong in ("0.0.0.0:80", "node1:80", "192.168.0.1:80"):
        with pytest.raises(UsageError, match="others can read along"):
            listening(wrong, "")
    for wrong in ("127.0.0.1", ":80", "127.0.0.1:99999", "127.0.0.1:http"):
        with pytest.raises(UsageError, match="write HOST:PORT"):
            listening(wrong, "")
    with pytest.raises(UsageError, match="give a PEM file"):
        listening("0.0.0.0:80", str(tmp_path / "none.pem"))
    pem = tmp_path / "both.pem"
    words = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=a",
        "-keyout",
        str(pem),
        "-out",
        str(pem) + ".crt",
    ]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    pem.write_text(pem.read_text() + Path(str(pem) + ".crt").read_text())
    assert isinstance(listening("0.0.0.0:0", str(pem))[2], ssl.SSLContext)
