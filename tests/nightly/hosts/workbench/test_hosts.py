"""Hosts are apart where machines are, joined where a network joins them, and leave nothing."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farandole.control import process
from tests.support.patience import PATIENCE_S
from workbench.cluster import HOME, Cluster, ClusterError, Process, helpers, hosts

SSH_PORT = 22
DEADLINE_S = PATIENCE_S


def test_hosts_have_names_and_identities_of_their_own(cluster: Cluster) -> None:
    assert cluster.hosts == ["head", "node1", "node2"]
    assert cluster.nodes == ["node1", "node2"]
    identities = ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"]
    seen = {Path(file).read_text() for file in identities}
    for host in cluster.hosts:
        assert cluster.run(host, ["sh", "-c", "hostname; cat /etc/hostname"]).stdout.split() == [host, host]
        seen |= {cluster.run(host, ["cat", file]).stdout for file in identities}
    assert len(seen) == 2 * (1 + len(cluster.hosts))


@pytest.mark.parametrize("host", ["node1", "node2"])
def test_ssh_takes_a_command_from_host_to_host(cluster: Cluster, host: str) -> None:
    done = cluster.run("head", ["ssh", host, "hostname; echo $HOME; env | grep -c PYENV"], check=False)
    assert done.stdout.split() == [host, str(HOME), "0"]
    assert done.stderr == ""
    assert cluster.run(host, ["ssh", "head", "ssh", host, "hostname"]).stdout == f"{host}\n"


def test_hosts_share_file_systems_but_not_memory_or_run(cluster: Cluster, tmp_path: Path) -> None:
    script = "echo $1 >$2/$1; echo $1 >/dev/shm/mine; echo $1 >/run/mine; cat $2/$1 /dev/shm/mine /run/mine; ls $2"
    for index, node in enumerate(cluster.nodes):
        said = cluster.run(node, ["sh", "-ec", script, "sh", node, str(tmp_path)]).stdout.split()
        assert said == [node] * 3 + cluster.nodes[: index + 1]
        assert cluster.path(node, "/run/mine").read_text() == f"{node}\n"
    assert not Path("/run/mine").exists()


def test_the_home_directory_is_the_clusters(cluster: Cluster) -> None:
    cluster.run("node1", ["sh", "-c", "echo here >~/note"])
    assert cluster.run("node2", ["cat", str(HOME / "note")]).stdout == "here\n"
    assert not Path("~/note").expanduser().exists()
    assert not HOME.exists()


def test_a_command_ends_as_it_would_here(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run(
        "node1", ["sh", "-c", "pwd; echo $WORD; echo bad >&2; exit 3"], env={"WORD": "w"}, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (3, [str(tmp_path), "w"], "bad\n")
    with pytest.raises(ClusterError, match=r"(?s)sh -c echo why >&2; exit 1 on node1 ended with 1.*why"):
        cluster.run("node1", ["sh", "-c", "echo why >&2; exit 1"])
    with pytest.raises(ClusterError, match="there is no host 'node9', but head, node1, node2"):
        cluster.run("node9", ["true"])
    with pytest.raises(ClusterError, match=r"ran for 0\.5 s"):
        cluster.run("node1", ["sleep", "1000"], timeout_s=0.5)
    assert cluster.processes("node1") == {}


def started(cluster: Cluster, host: str, script: str) -> Process:
    """A shell on a host that has said ``up``."""
    process = cluster.popen(host, ["bash", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_signals_reach_a_command(cluster: Cluster) -> None:
    with started(cluster, "node1", 'sleep 1000 & trap "echo heard; kill $!; exit 5" USR1; echo up; wait') as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.read() == "heard\n"
        assert process.wait(PATIENCE_S) == 5
    with started(cluster, "node1", "echo up; kill -SEGV $$") as process:
        assert process.wait(PATIENCE_S) == -signal.SIGSEGV
    with started(cluster, "node1", "echo up; exec sleep 1000") as process:
        assert ["sleep 1000" in words for words in cluster.processes("node1").values()] == [True]
    gone(cluster, "node1")


def gone(cluster: Cluster, host: str) -> None:
    """Wait until nothing is left on a host (the kernel kills a killed command's child a moment later)."""
    for pid in cluster.processes(host):
        cluster.run(host, ["tail", f"--pid={pid}", "-f", "/dev/null"])
    assert cluster.processes(host) == {}


def test_clusters_do_not_see_each_other(cluster: Cluster, make_cluster: Callable[..., Cluster]) -> None:
    links = os.listdir("/sys/class/net")
    other = make_cluster(1)
    assert other.address("node1") == cluster.address("node1")
    other.run("node1", ["sh", "-c", "echo other >~/whose"])
    assert cluster.run("node1", ["sh", "-c", "cat ~/whose"], check=False).stdout == ""
    assert os.listdir("/sys/class/net") == links
    assert not (cluster.run("head", ["ip", "route"]).stdout.splitlines()[1:])


def test_hosts_can_have_one_family_of_addresses(make_cluster: Callable[..., Cluster]) -> None:
    six = make_cluster(1, ipv4=False)
    assert six.run("head", ["sh", "-c", "getent hosts node1; ip -4 addr show eth0"]).stdout.split() == [
        "fd77::1",
        "node1",
    ]
    assert six.run("head", ["ssh", "node1", "echo $SSH_CONNECTION"]).stdout.split()[2:] == ["fd77::1", str(SSH_PORT)]


def namespaces_of(pid: int) -> set[str]:
    """Namespaces that one process is in: none when it has ended."""
    try:
        return {os.readlink(link) for link in Path(f"/proc/{pid}/ns").iterdir()}
    except OSError:
        return set()


def namespaces_in_use() -> set[str]:
    """Every namespace that some process of this machine is in, but for those of tests that run beside this one."""
    ours = {os.getpid(), *process.descendants()}
    others = set(process.descendants(os.getppid())) - ours if "PYTEST_XDIST_WORKER" in os.environ else set()
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return set().union(*(namespaces_of(pid) for pid in pids - others))


def test_closing_leaves_nothing(make_cluster: Callable[..., Cluster]) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt", "pid", "uts", "ipc")}
    made = make_cluster(2)
    inside = {
        os.readlink(made.path(host, f"/proc/1/ns/{kind}")) for host in made.hosts for kind in ("net", "mnt", "pid")
    }
    assert len(inside) == 9
    assert not inside & own
    made.popen("node1", ["sh", "-c", "sleep 1000 & setsid sleep 1000 & wait"])
    made.lag("node2", 1)
    made.close()
    made.close()
    assert not inside & namespaces_in_use()
    assert Path("/proc/self/mounts").read_text() == mounts


def test_a_cluster_of_which_a_host_does_not_come_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody is killed by a number that was a host's before."""

    def seen() -> set[str]:
        return set().union(*(namespaces_of(pid) for pid in (os.getpid(), *process.descendants())))

    before, made, calls = seen(), set[str](), itertools.count()

    def ready(host: subprocess.Popen[bytes]) -> int:
        number = helpers.ready(host)
        made.update(seen() - before)
        if next(calls) == 2:  # the switch and the head have been ready
            raise ClusterError("the second host did not come up")
        return number

    monkeypatch.setattr(hosts, "ready", ready)
    with pytest.raises(ClusterError, match="the second host did not come up"):
        Cluster(2)
    assert len(made) >= 9  # the switch, the head and the host that had come up, too
    until_s = time.monotonic() + DEADLINE_S
    while made & namespaces_in_use():  # nothing announces the end of a host that nobody has heard of
        assert time.monotonic() < until_s


OWNER = """
import json, os, sys
from workbench.cluster import Cluster

cluster = Cluster(1)
cluster.popen("node1", ["sleep", "1000"], stdout=2)
cluster.lag("node1", 1)
spaces = [os.readlink(cluster.path(host, f"/proc/1/ns/{kind}")) for host in cluster.hosts for kind in ("net", "pid")]
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print(json.dumps([spaces, [int(child) for child in children]]), flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_a_cluster_whose_process_is_killed(cluster: Cluster) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        spaces, children = json.loads(owner.stdout.readline())
        ends = [os.pidfd_open(child) for child in children]
        owner.kill()
    assert len(ends) == 5  # the switch, two hosts, a command and the delay
    for end in ends:
        assert select.select([end], [], [], 60)[0]
        os.close(end)
    assert not set(spaces) & namespaces_in_use()
