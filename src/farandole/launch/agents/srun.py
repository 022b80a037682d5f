"""Agents by Slurm, inside an allocation: one ``srun`` for all hosts, and no ssh.

    Srun().command(["node1", "node2"], settings)

The step overlaps with other steps of the job and may use all of the job's resources on these hosts. Slurm gives its
tasks the launcher's environment, and broadcasts the agents' config on standard input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from farandole.control.entry import entry_command
from farandole.control.process import describe
from farandole.launch.agents.agent_config import MODULE
from farandole.launch.agents.agents import AgentStarter, StarterGroup
from farandole.settings import Settings

OPTIONS = (
    "--overlap", "--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--wait=0",
    "--export=ALL", "--output=all", "--error=all", "--job-name=farandole",
)  # fmt: skip
"""Options of ``srun``; they override the user's ``SLURM_`` variables. The exit of one agent must not end the others."""


@final
@dataclass(frozen=True)
class Srun(AgentStarter):
    """Starter by ``srun``: agents of all hosts, including the launcher's own, are tasks of one job step.

    With a starter for hosts ``elsewhere``, only hosts among the allocation's ``nodes`` belong to the step.
    """

    nodes: frozenset[str] = frozenset()
    elsewhere: AgentStarter | None = None

    def groups(self, hosts: Sequence[str], here: str) -> list[StarterGroup]:
        """One group of all hosts, or one of the allocation's nodes, and the groups of ``elsewhere`` for other hosts."""
        ours = tuple(dict.fromkeys(host for host in hosts if self.elsewhere is None or host in self.nodes))
        others = [host for host in hosts if host not in ours]
        groups = [StarterGroup(self, ours)] if ours else []
        return groups if self.elsewhere is None else [*groups, *self.elsewhere.groups(others, here)]

    def command(self, hosts: Sequence[str], settings: Settings, module: str = MODULE) -> list[str]:
        """Command with one task per host; a task learns its host's name from Slurm's variable."""
        number = str(len(hosts))
        where = ["--nodes", number, "--ntasks", number, "--nodelist", ",".join(hosts)]
        return ["srun", *OPTIONS, "--input=all", *where, *entry_command(module)]

    def explain(self, hosts: Sequence[str], code: int, said: str) -> str:
        """Errors printed by ``srun`` and the agents."""
        lines = [line.strip().removeprefix("farandole: ") for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if "error:" in line or "cannot join" in line or "No module named" in line]
        reason = f": {'; '.join((errors or lines)[-3:])}" if lines else ""
        return (
            f"the srun that starts the agents of {', '.join(hosts)} {describe(code)}{reason} "
            "(--launcher ssh starts them without Slurm)"
        )
