"""A real Slurm on the hosts of a cluster: a controller on ``head``, nodes ``node1``..., up in less than a second.

    with SlurmCluster(2) as slurm:
        slurm.run(["srun", "-N2", "hostname"]).stdout                 # node1 and node2, in some order
        slurm.run(["sbatch", "--wait", "--output=out.txt", "job.sh"], cwd=folder)
        slurm.cluster.kill("node2"); slurm.boot("node2")              # and whatever else happens to hosts

Slurm's commands work as usual, on every host. Its daemons, keys and logs exist in the hosts alone; nothing of the
machine's own Slurm is read or written.
"""

from __future__ import annotations

import pwd
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from workbench.cluster import accounting, needs
from workbench.cluster.helpers import PATIENCE_S
from workbench.cluster.hosts import HEAD, Cluster
from workbench.cluster.needs import ClusterError

_LOOK_AGAIN_S = 0.03
_LOG = "/run/daemons.log"
_COMMANDS = ("sbatch", "squeue", "sinfo", "scontrol", "scancel")
_DAEMONS = frozenset({"munged", "slurmctld", "slurmscriptd", "slurmd"})
"""Processes of a node without jobs; slurmctld forks slurmscriptd some time after the command has returned."""

_NO_CGROUPS_SINCE = (24, 5)

URGENT = "urgent"
"""A partition whose jobs preempt others, with notice."""

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={head}
NodeName=node[1-{nodes}] CPUs={cpus} RealMemory=4096 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName={urgent} Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# Everything is root's, and private to its host; sockets need short paths.
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/slurmd.log
MailProg=/bin/true
# A few cores pose as many, without cgroups, binding or raised limits.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
PropagateResourceLimits=NONE
# Seconds that are minutes by default: until jobs start, are requeued and killed, until nodes are lost and come back.
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,permit_job_expansion
AuthInfo=cred_expire=5
KillWait=3
UnkillableStepTimeout=10
MessageTimeout=5
SlurmctldTimeout=10
SlurmdTimeout=60
ReturnToService=2
"""


@final
class SlurmCluster:
    """A cluster that Slurm manages; each node claims to have ``cpus``.

    With ``accounts`` it has slurmdbd, some seconds later: ``sacct`` and ``sacctmgr`` work, and limits of users apply.
    Raises ``UnavailableError`` like ``Cluster``.
    """

    def __init__(self, nodes: int, *, cpus: int = 8, accounts: bool = False) -> None:
        needs.require(needs.ACCOUNTING if accounts else needs.SLURM)
        self._accounts = accounts
        configuration = _CONFIGURATION.format(head=HEAD, nodes=nodes, cpus=cpus, urgent=URGENT)
        etc = {
            "slurm/slurm.conf": configuration + (accounting.CLIENT if accounts else ""),
            **({accounting.DBD_CONF: accounting.SERVER} if accounts else {}),
            # slurmd loads a plugin for cgroups though nothing uses them; v1 then needs nothing, v2 would fail.
            "slurm/cgroup.conf": f"CgroupPlugin={'disabled' if _version() >= _NO_CGROUPS_SINCE else 'cgroup/v1'}\n",
            # By default in /tmp, which hosts share, by job number, which clusters share.
            "slurm/mpi.conf": "PMIxCliTmpDirBase=/run/pmix\n",
            "munge/munge.key": secrets.token_hex(64),
        }
        self.cluster = Cluster(nodes, etc=etc, daemons=_DAEMONS | accounting.DAEMONS)
        try:
            key = self.cluster.path(HEAD, "/etc/munge/munge.key")  # munged refuses keys that others could read
            key.chmod(0o400)
            key.parent.chmod(0o700)
            if accounts:
                self.cluster.path(HEAD, f"/etc/{accounting.DBD_CONF}").chmod(0o600)
            self._start_daemons(self.cluster.hosts)
            self._await_idle(nodes)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SlurmCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        check: bool = True,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the head, like ``Cluster.run``."""
        return self.cluster.run(HEAD, command, env=env, cwd=cwd, check=check, timeout_s=timeout_s)

    def boot(self, host: str) -> None:
        """Start a host that was killed, and its daemons; a node is idle again within seconds."""
        self.cluster.boot(host)
        self._start_daemons([host])

    def commands(self, folder: Path, user: str = "root") -> str:
        """Put Slurm's commands into a folder, for a process of this machine; returns a ``PATH`` that begins with it.

        They run on the head, as this user, with the environment and the standard streams of their caller.
        """
        account = pwd.getpwnam(user)
        become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
        for name in _COMMANDS:
            words = self.cluster.command(HEAD, [*become, shutil.which(name, path=needs.search_path()) or name])
            (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (folder / name).chmod(0o755)
        return f"{folder}:{needs.search_path()}"

    def signal_controller(self, number: int) -> None:
        """Send a signal to slurmctld: ``SIGSTOP`` lets it hang until ``SIGCONT``, 9 kills it.

        A killed slurmctld loses the submissions of its last seconds: it saves its jobs every five seconds.
        """
        self.run(["kill", f"-{number:d}", self._controller])

    def stop_controller(self) -> None:
        """End slurmctld, which saves its jobs; returns after its exit."""
        process = self.cluster.path(HEAD, f"/proc/{self._controller}")
        self.signal_controller(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        while process.exists():
            if time.monotonic() > deadline:
                raise ClusterError(f"slurmctld did not end in {PATIENCE_S} s")
            time.sleep(_LOOK_AGAIN_S)

    def start_controller(self) -> None:
        """Start slurmctld after its exit; it still knows its jobs."""
        self.run(["sh", "-c", f"slurmctld >>{_LOG} 2>&1"])

    def close(self) -> None:
        """End all jobs, daemons and hosts."""
        self.cluster.close()

    @property
    def _controller(self) -> str:
        return self.cluster.path(HEAD, "/run/slurmctld.pid").read_text().strip()

    def _start_daemons(self, hosts: Sequence[str]) -> None:
        starting = {host: self.cluster.popen(host, ["sh", "-c", self._start_line(host)], cwd="/") for host in hosts}
        for host, process in starting.items():
            if process.wait(PATIENCE_S) != 0:
                raise ClusterError(f"Slurm did not start on {host}:\n{self.cluster.path(host, _LOG).read_text()}")

    def _await_idle(self, nodes: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], check=False).stdout.strip() != str(nodes):
            if time.monotonic() > deadline:
                log = self.cluster.path(HEAD, "/run/slurmctld.log").read_text()
                raise ClusterError(f"{nodes} nodes were not idle after {PATIENCE_S} s:\n{log}")
            time.sleep(_LOOK_AGAIN_S)

    def _start_line(self, host: str) -> str:
        folders = "/run/munge /run/pmix /run/slurmd /run/slurmctld"
        munged = "munged --pid-file=/run/munge/pid --seed-file=/run/munge/seed --log-file=/run/munge/log"
        daemons = [f"mkdir {folders}", munged, "slurmctld" if host == HEAD else "slurmd"]
        if host == HEAD and self._accounts:
            daemons.insert(2, accounting.START)
        # Not to the caller's pipes: a daemon that kept a pipe open would let a reader wait for its end.
        return f"({' && '.join(daemons)}) >{_LOG} 2>&1"


def _version() -> tuple[int, ...]:
    said = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True, timeout=60).stdout
    return tuple(int(number) for number in re.findall(r"\d+", said)[:2])
