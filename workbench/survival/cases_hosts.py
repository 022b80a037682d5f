"""Rows and phases of the table of faults between two hosts: failures of hosts, agents and networks, and intruders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import final

from workbench.cluster import HEAD, Cluster
from workbench.survival.cases import Do, FaultCase, again, controller, kill, other
from workbench.survival.fault_injection import ScheduledFault
from workbench.survival.job import TraineeJob

SSH, LISTENS = 22, "0A"


def _cluster(what: str, *words: object) -> Do:
    def do(job: TraineeJob, _number: int) -> None:
        getattr(_hosts(job), what)(*words)

    return do


def _hosts(job: TraineeJob) -> Cluster:
    assert job.cluster is not None
    return job.cluster


def _called(phase: str) -> list[ScheduledFault]:
    """A fault at which rank 0 waits in a phase until the action from outside is done."""
    return [ScheduledFault(phase, 0, "call")]


def host(what: str, undo: str, phase: str, name: str, quick: bool = False) -> FaultCase:
    """Something happens to node2, the host of rank 2, while rank 0 is in a phase; and is undone."""
    return FaultCase(
        name, phase, _called(phase), _cluster(what, "node2"), _cluster(undo, "node2"), lost="node2", quick=quick
    )


def vanishes(phase: str) -> FaultCase:
    """A host loses power while the workers re-form, because a worker on that host was killed."""
    faults = [ScheduledFault("reduce", 3), ScheduledFault(phase, 0, "call", later=True)]
    do, undo = _cluster("kill", "node2"), _cluster("boot", "node2")
    name = "SIGKILL of rank 3, then its host loses power"
    return FaultCase(name, f"reduce, then {phase}", faults, do, undo, lost="node2")


def agent(phase: str) -> FaultCase:
    """The agent of a host is killed, and with it the workers there."""
    return FaultCase("SIGKILL of a host's agent", phase, _called(phase), _kill_agent, lost="node2")


def _kill_agent(job: TraineeJob, _number: int) -> None:
    pids = [pid for pid, words in _hosts(job).processes("node2").items() if "farandole.launch.agents.agent" in words]
    _hosts(job).run("node2", ["kill", "-KILL", *map(str, pids)])


def _swap(job: TraineeJob, _number: int) -> None:
    """One worker joins while another one leaves."""
    last = job.generation()[0].generation
    names = list(job.hosts)
    job.offer({names[0]: job.hosts[names[0]] + 1, names[1]: job.hosts[names[1]] - 1})
    swapped = job.until_whole(after=last)
    job.offer(job.hosts)
    job.until_whole(after=swapped[0].generation)


# -- networks ----------------------------------------------------------------------------------------------------------


def _rule(flag: str, rule: str) -> Do:
    """``iptables -A`` or ``-D`` on node2, for both families of addresses; NODE1 is the address of node1."""

    def do(job: TraineeJob, _number: int) -> None:
        node1 = _hosts(job).address("node1")
        for command, address in (("iptables", node1.ipv4), ("ip6tables", node1.ipv6)):
            _hosts(job).run("node2", [command, flag, *rule.replace("NODE1", address).split()])

    return do


def slow(do: Do, undo: Do, name: str) -> FaultCase:
    """The network of a host is bad, and no host or rank may count as lost for that reason."""
    return FaultCase(name, "any", done=do, after=undo, harmless=True)


def silent(chain: str, name: str, phase: str) -> FaultCase:
    """Packets get through in one direction only."""
    rule = f"{chain} -j DROP"
    return FaultCase(name, phase, _called(phase), _rule("-A", rule), _rule("-D", rule), lost="node2")


def parted(phase: str, name: str, one_way: bool = False) -> FaultCase:
    """The two hosts cannot reach each other, and the launcher reaches both: the younger host has to leave."""

    def do(job: TraineeJob, _number: int) -> None:
        _hosts(job).cut("node2", "node1", one_way=one_way)

    return FaultCase(name, phase, _called(phase), do, _cluster("heal", "node2", "node1"), lost="node2")


def resets(whose: str, name: str, lost: str = "", quick: bool = False) -> FaultCase:
    """Answer packets to node2 by RST, which closes the connection at its other end, until the job notices."""
    rule = f"INPUT -i eth0 {whose} -p tcp -j REJECT --reject-with tcp-reset"

    def do(job: TraineeJob, number: int) -> None:
        before = _ends(job)
        _rule("-A", rule)(job, number)
        job.until(lambda: _ends(job) > before, "the end of the generation")
        _rule("-D", rule)(job, number)

    return FaultCase(name, "any", done=do, lost=lost, quick=quick)


def _ends(job: TraineeJob) -> int:
    """Count of ends and beginnings of generations: if a host is lost, an end may have no record of its own."""
    journal = (job.folder / "journal").read_text()
    return journal.count('"type":"GenerationEnded"') + journal.count('"type":"Form"')


def _reboot(job: TraineeJob, _number: int) -> None:
    """Reboot node2 at once: its peers keep half-open connections to it."""
    _hosts(job).kill("node2")
    _hosts(job).boot("node2")


# -- intruders ---------------------------------------------------------------------------------------------------------


def _intrude(job: TraineeJob, words: Sequence[str], host: str, targets: Sequence[str]) -> None:
    """From a host, send data to every port of the targets on which the job listens."""
    for target in targets:
        ports = listening(_hosts(job), target)
        assert ports or target != HEAD, f"the job listens nowhere on {target}"
        command = [sys.executable, "-m", "workbench.survival.intruder", "say", *words]
        _hosts(job).run(host, [*command, _hosts(job).address(target).ipv4, *map(str, ports)])


def listening(cluster: Cluster, host: str) -> list[int]:
    """Ports on which a host listens, except its ssh server's."""
    tables = [cluster.path(host, f"/proc/1/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENS} - {SSH})


def _malformed(job: TraineeJob, _number: int) -> None:
    _intrude(job, ["-"], "node2", [HEAD, "node1"])


def _replay(job: TraineeJob, _number: int) -> None:
    """Replay to the head and node1 what they received while a worker joined: in that generation, and in the next."""
    last = job.generation()[0].generation
    taps = {host: _Tap(job, host) for host in (HEAD, "node1")}
    job.offer({**job.hosts, "node2": job.hosts["node2"] + 1})
    grown = job.until_whole(sum(job.hosts.values()) + 1, after=last)
    files = {host: tap.end() for host, tap in taps.items()}
    for host, file in files.items():
        assert file.stat().st_size > 10, f"{host} heard nothing"
        _intrude(job, [str(file)], "node2", [host])
    job.offer(job.hosts)
    job.until_whole(after=grown[0].generation)
    for host, file in files.items():
        _intrude(job, [str(file)], "node2", [host])


@final
class _Tap:
    """Records what a host receives until ``end``, which returns the file."""

    def __init__(self, job: TraineeJob, host: str) -> None:
        self._file = job.folder / f"heard-on-{host}"
        command = [sys.executable, "-m", "workbench.survival.intruder", "record", str(self._file)]
        self._process = _hosts(job).popen(host, command, stdin=-1, stdout=-1)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def end(self) -> Path:
        self._process.communicate(timeout=60)
        return self._file


LOSSY = "INPUT -i eth0 -m statistic --mode random --probability 0.1 -j DROP"

TWO_HOSTS = (
    kill("reduce", 3, quick=True),
    kill("voted", 0, name="SIGKILL of rank 0: a torn vote"),
    kill("vote", 2, 3, name="SIGKILL of both ranks of a host"),
    again("connect", 1),
    again("agree", 2),
    other("stop", "backward", 1, "SIGSTOP"),
    controller("vote", quick=True),
    agent("reduce"),
    agent("voted"),
    host("kill", "boot", "backward", "a host loses power", quick=True),
    host("kill", "boot", "vote", "a host loses power"),
    vanishes("connect"),
    vanishes("agree"),
    vanishes("transfer"),
    FaultCase("a host reboots at once: half-open connections", "reduce", _called("reduce"), _reboot, lost="node2"),
    host("cut", "heal", "reduce", "a host loses its cable", quick=True),
    host("cut", "heal", "voted", "a host loses its cable"),
    silent("OUTPUT -o eth0", "no host receives from a host, which receives from all", "reduce"),
    silent("INPUT -i eth0", "a host receives from no host, and all receive from it", "vote"),
    parted("reduce", "the launcher reaches two hosts that do not reach each other"),
    parted("vote", "packets from one host to another are lost, all others arrive", one_way=True),
    resets("-s NODE1", "RST to every connection between the hosts", quick=True),
    resets("", "RST to every connection of a host, also its agent's", lost="node2"),
    host("freeze", "thaw", "forward", "a host freezes"),
    slow(_cluster("lag", "node2", 500), _cluster("lag", "node2", 0), "500 ms of lag to a host"),
    slow(_cluster("rate", "node2", "1mbit"), _cluster("rate", "node2", None), "1 Mbit/s to a host"),
    slow(_rule("-A", LOSSY), _rule("-D", LOSSY), "one packet in ten to a host is lost"),
    FaultCase("a worker joins where another one leaves", "any", done=_swap, planned=True, quick=True),
    FaultCase("malformed and oversized messages at every port", "any", done=_malformed, harmless=True),
    FaultCase("recorded messages and frames, sent again to every port", "any", done=_replay, planned=True),
)
"""Faults on two hosts with two slots each."""
