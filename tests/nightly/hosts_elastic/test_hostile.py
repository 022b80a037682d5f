"""A third host speaks to a job that it has no part in: nothing comes of it but a count, and a word in the log."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

import msgspec
import pytest

from farandole.cluster.environment import CONTROLLER, KEY, OWN
from farandole.control.keys import new_secret
from tests.support.cluster.ranks import FACTS, column, told
from tests.support.cluster.running import ClusterJob
from tests.support.patience import PATIENCE_S
from workbench.cluster import HEAD, Cluster

pytestmark = pytest.mark.parametrize("cluster", [3], indirect=True)

WORKERS, STRANGER = ("node1", "node2"), "node3"
PORT = 7000
INTRUDER = [sys.executable, "-m", "workbench.survival.intruder"]
STRANGERS = "connections without this job's key"

REDUCES = (
    FACTS
    + """
from pathlib import Path
init()
struck, x, do, rounds = Path(__file__).with_name("struck"), np.ones(1000), NumpyCalls(), 0
while x[0]:
    x[:] = 2.0 ** place
    x[0] = not struck.exists()  # until all ranks have seen it
    do.allreduce("x", x)
    assert (x[1:] == 3.0).all()
    if not rounds:
        tell(when="ready", rank=place)
    rounds += 1
tell(when="done", rank=place, rounds=rounds)
shutdown()
"""
)
"""Both ranks reduce, and look at what they get, until the stranger has done its worst."""

HOLDER = """
import sys
from farandole.control.channel import Dealer
from farandole.control.keys import JobKeys
from farandole.control.agent_messages import AGENT, AgentHello
from farandole.control.messages import Hello, Refuse
from farandole.errors import ControlError

what, address, secret = sys.argv[1:]
keys, hello = JobKeys.from_secret(secret), Hello("w", 0, 2, "node3", 4711, "0.0.1", ["tcp"], -1, 0, [])
if what == "knock":
    try:
        Dealer(address, b"stranger-u", keys)
    except ControlError as error:
        sys.exit(str(error))
elif what == "worker":
    with Dealer(address, b"old-c", keys) as control, Dealer(address, b"old-u", keys) as up:
        up.send(hello)
        answer = control.recv(30)
        sys.exit(answer.reason if isinstance(answer, Refuse) else f"answered by {answer}")
elif what == "agent":
    for host in ("node2", "node3"):  # one that has its agent, and one that needs none
        with Dealer(address, AGENT + host.encode(), keys, timeout_s=None) as link:
            link.send(AgentHello(host, 4711, "0.0.1"))
            link.recv(1.0)
else:
    with Dealer(address, b"alien-u", keys) as up:
        up._socket.send(b"\\x93\\xa5Hallo\\x01\\x02")  # another version's words, perhaps
        up.flush(30)
"""
"""A process with a key: ``knock`` | ``worker`` | ``agent`` | ``frame``, an address, and the key."""


@final
class Attacked:
    """A job of a rank on each of two hosts, all that was said to the hosts while it started, and the third host."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.jobs: list[ClusterJob] = []
        self._recorders = [self._record(host) for host in (HEAD, *WORKERS)]

    def _record(self, host: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [*INTRUDER, "record", str(self.recording(host))]
        recorder = self.cluster.popen(host, command, stdin=pipe, stdout=pipe)
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == "ready\n"
        return recorder

    def start(self, host: str, *words: str, **variables: str) -> None:
        """One process of the job, or what starts all."""
        script, own = self.folder / "rank.py", self.folder / f"on-{host}"
        script.write_text(REDUCES)
        own.mkdir()
        self.jobs.append(ClusterJob(self.cluster, own, [*words, sys.executable, str(script)], variables, host))

    def arrive(self) -> None:
        """Wait for the first result, and end the recordings."""
        self.jobs[0].until(lambda: len(told(self.stdout, "ready")) == 2, "for two ranks")
        for recorder in self._recorders:
            recorder.communicate("", timeout=PATIENCE_S)
            assert recorder.returncode == 0

    @property
    def stdout(self) -> str:
        """What all ranks have printed."""
        return "".join(job.stdout for job in self.jobs)

    def recording(self, host: str) -> Path:
        """What was said to a host."""
        return self.folder / f"{host}.json"

    def controller(self, host: str) -> int:
        """The port of the controller on its host, where a launcher has chosen it; an engine may be there, too."""
        ports = self.ports(host)
        return PORT if PORT in ports else ports[0]

    def ports(self, host: str) -> list[int]:
        """Where somebody listens on a host, but for its sshd."""
        lines = self.cluster.run(host, ["ss", "-Hltn"]).stdout.splitlines()
        return sorted({int(line.split()[3].rpartition(":")[2]) for line in lines} - {22})

    def say(self, file: Path | str, host: str) -> None:
        """Let the stranger say this to every port of a host."""
        address = self.cluster.address(host).ipv4
        self.cluster.run(STRANGER, [*INTRUDER, "say", str(file), address, *map(str, self.ports(host))])

    def hold(self, what: str, host: str, port: int, key: str) -> str:
        """Let the stranger try with a key; what it is told."""
        command = [sys.executable, "-c", HOLDER, what, f"tcp://{self.cluster.address(host).ipv4}:{port}", key]
        return self.cluster.run(STRANGER, command, check=False).stderr

    def end(self) -> str:
        """Let the ranks end, and look at what they had; the log of the control plane."""
        (self.folder / "struck").touch()
        assert [job.end() for job in self.jobs] == [0] * len(self.jobs), self.jobs[0].stderr
        assert column(told(self.stdout, "done"), "rank") == [0, 1]
        return self.jobs[0].stderr

    def close(self) -> None:
        """End what still runs."""
        for recorder in self._recorders:
            with recorder:  # which ends it, and closes its pipes
                pass
        for job in self.jobs:
            if job.process.poll() is None:
                job.process.kill()
                job.process.wait(PATIENCE_S)


@pytest.fixture
def attacked(cluster: Cluster, tmp_path: Path) -> Iterator[Attacked]:
    found = Attacked(cluster, tmp_path)
    yield found
    found.close()


def by_launcher(job: Attacked, _: str) -> str:
    """The job, and the host of its controller."""
    job.start(HEAD, sys.executable, "-m", "farandole", "run", "-H", ",".join(WORKERS))
    return HEAD


def by_variables(job: Attacked, key: str) -> str:
    """The same, started by hand."""
    shared = {OWN.size: "2", CONTROLLER: f"tcp://node1:{PORT}", KEY: key}
    for rank, host in enumerate(WORKERS):
        job.start(host, **shared, **{OWN.rank: str(rank)})
    return "node1"


@pytest.mark.parametrize("start", [by_launcher, by_variables])
def test_noise_what_was_recorded_and_wrong_keys_are_refused_counted_and_said_once(
    attacked: Attacked, start: Callable[[Attacked, str], str]
) -> None:
    key = new_secret()
    root = start(attacked, key)
    attacked.arrive()
    port = attacked.controller(root)
    for host in (root, *WORKERS):  # on the others, only the engine listens
        attacked.say("-", host)
        attacked.say(attacked.recording(host), host)
    assert "refused this process's key" in attacked.hold("knock", root, port, new_secret())
    log = attacked.end()
    assert log.count(f"refused {STRANGERS} (") == 1, log
    [count] = re.findall(f"refused (\\d+) {STRANGERS} in all", log)
    streams = msgspec.json.decode(attacked.recording(root).read_bytes(), type=list[bytes])
    assert sum(stream.startswith(b"\xff") and b"CURVE" in stream for stream in streams) >= 3, (
        "a worker has three sockets"
    )
    assert int(count) > len(streams), log


def test_who_has_the_key_and_another_version_is_refused_counted_and_said_once(attacked: Attacked) -> None:
    key = new_secret()
    root = by_variables(attacked, key)
    attacked.arrive()
    for _ in range(2):
        assert "has 0.0.1: install the same version" in attacked.hold("worker", root, PORT, key)
        assert attacked.hold("agent", root, PORT, key) == attacked.hold("frame", root, PORT, key) == ""
    log = attacked.end()
    for kind in (
        "processes that are none of the job's workers",
        "agents of another version",
        "frames that are no message",
    ):
        assert log.count(f"refused {kind} (") == log.count(f"refused 2 {kind} in all") == 1, log
