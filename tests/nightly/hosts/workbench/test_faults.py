"""What can happen to hosts and cables happens, and is undone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.support.patience import PATIENCE_S
from workbench.cluster import Cluster, ClusterError

LISTENER = """
import socket, sys
with socket.create_connection((sys.argv[1], 22), timeout=60) as connection:
    connection.recv(100)
    print("connected", flush=True)
    sys.stdin.readline()
    connection.settimeout(1)
    try:
        print("closed" if connection.recv(100) == b"" else "alive")
    except TimeoutError:
        print("silent")
"""


def connects(cluster: Cluster, host: str, peer: str, patience_s: int) -> set[int]:
    """What connecting from one host to the other's ssh server comes to, by its two addresses: 0, or 124 for silence."""
    address = cluster.address(peer)
    return {
        cluster.run(host, ["timeout", str(patience_s), "bash", "-c", f": </dev/tcp/{each}/22"], check=False).returncode
        for each in (address.ipv4, address.ipv6)
    }


def reaches(cluster: Cluster, host: str, peer: str) -> bool:
    return connects(cluster, host, peer, patience_s=30) == {0}


def hears_nothing(cluster: Cluster, host: str, peer: str) -> bool:
    return connects(cluster, host, peer, patience_s=1) == {124}


def test_a_pulled_cable_is_silence(cluster: Cluster) -> None:
    cluster.cut("node2")
    assert hears_nothing(cluster, "node1", "node2")
    assert reaches(cluster, "node1", "head")
    cluster.heal("node2")
    assert reaches(cluster, "node1", "node2")


def test_two_hosts_are_cut_off_from_each_other_only(cluster: Cluster) -> None:
    cluster.cut("node1", "node2")
    assert hears_nothing(cluster, "node1", "node2")
    assert hears_nothing(cluster, "node2", "node1")
    assert reaches(cluster, "node1", "head")
    assert reaches(cluster, "head", "node2")
    cluster.heal("node1", "node2")
    assert reaches(cluster, "node1", "node2")
    assert reaches(cluster, "node2", "node1")


def after(cluster: Cluster, host: str, peer: str, fault: Callable[[], object]) -> str:
    """What a connection sees of a fault that strikes its peer."""
    command = [sys.executable, "-I", "-S", "-c", LISTENER, cluster.address(peer).ipv4]
    process = cluster.popen(host, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        fault()
        return process.communicate("\n", timeout=PATIENCE_S)[0].strip()


def test_power_loss_is_silence_and_a_killed_process_is_not(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(2)
    kill_all = ["bash", "-c", "kill -KILL -1"]
    assert after(cluster, "node1", "node2", lambda: cluster.run("node2", kill_all)) == "closed"
    cluster.kill("node2")
    cluster.boot("node2")
    with cluster.popen("node2", ["bash", "-c", "echo there; exec sleep 1000"], stdout=subprocess.PIPE) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "there\n"
        assert after(cluster, "node1", "node2", lambda: cluster.kill("node2")) == "silent"
        assert sleeper.wait(PATIENCE_S) == -9
    with pytest.raises(ClusterError, match=r"node2 has no power: boot\('node2'\)"):
        cluster.run("node2", ["true"])
    cluster.boot("node2")
    assert cluster.processes("node2") == {}
    assert reaches(cluster, "node1", "node2")


def test_a_frozen_host_answers_no_more_until_it_thaws(cluster: Cluster) -> None:
    def greeting(patience_s: int) -> str:
        read = f"timeout {patience_s} bash -c 'read -r line </dev/tcp/node2/22 && echo $line'"
        return cluster.run("node1", ["sh", "-c", read], check=False).stdout

    cluster.freeze("node2")
    assert greeting(patience_s=1) == ""
    cluster.thaw("node2")
    assert greeting(patience_s=30).startswith("SSH-2.0")


def send(cluster: Cluster, sender: str, receiver: str, megabytes: int) -> None:
    cluster.run(sender, ["bash", "-c", f"head -c {megabytes}M /dev/zero | ssh {receiver} 'cat >/dev/null'"])


def test_bytes_are_counted_where_they_leave_and_arrive(cluster: Cluster) -> None:
    sent, received, others = cluster.sent_bytes("node1"), cluster.received_bytes("node2"), cluster.sent_bytes("head")
    resent = cluster.resent_bytes("node1")
    send(cluster, "node1", "node2", 4)
    for counted in (cluster.sent_bytes("node1") - sent, cluster.received_bytes("node2") - received):
        assert 4 << 20 <= counted < 1.1 * (4 << 20) + 2 * (cluster.resent_bytes("node1") - resent)
    assert cluster.sent_bytes("head") - others < 10_000


def test_bytes_that_tcp_repeats_are_counted(cluster: Cluster) -> None:
    with cluster.popen("node1", ["ssh", "node2", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        print("before", file=process.stdin, flush=True)
        assert process.stdout.readline() == "before\n"
        before = cluster.resent_bytes("node1")
        cluster.cut("node1", "node2", one_way=True)
        print("repeated", file=process.stdin, flush=True)
        deadline = time.monotonic() + 60
        while cluster.resent_bytes("node1") == before:
            assert time.monotonic() < deadline
        cluster.heal("node1", "node2")
        assert process.stdout.readline() == "repeated\n"


def held_back(cluster: Cluster, host: str) -> int:
    """How often the limit of a cable made a packet wait."""
    words = cluster.run(host, ["tc", "-s", "qdisc", "show", "dev", "eth0", "root"]).stdout.split()
    return int(words[words.index("overlimits") + 1])


def test_a_cable_has_a_rate(cluster: Cluster) -> None:
    cluster.rate("node1", None)
    cluster.rate("node1", "100mbit")
    assert "rate 100Mbit" in cluster.run("node1", ["tc", "qdisc", "show", "dev", "eth0"]).stdout
    send(cluster, "node1", "node2", 2)
    assert held_back(cluster, "node1") > 0
    cluster.rate("node1", None)
    assert "qdisc noqueue" in cluster.run("node1", ["tc", "qdisc", "show", "dev", "eth0"]).stdout


def test_what_a_host_receives_can_come_late(cluster: Cluster) -> None:
    timed = "import socket,time; t=time.monotonic(); socket.create_connection(('node2',22)); print(time.monotonic()-t)"
    cluster.lag("node2", 100)
    assert float(cluster.run("node1", [sys.executable, "-I", "-S", "-c", timed]).stdout) >= 0.1
    send(cluster, "node1", "node2", 1)
    cluster.lag("node2", 0)
    assert reaches(cluster, "node1", "node2")
    assert "NFQUEUE" not in cluster.run("node2", ["iptables", "-t", "mangle", "-S"]).stdout
