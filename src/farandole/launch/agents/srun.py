"""Agents by Slurm, inside an allocation: one ``srun`` for all hosts, and no ssh.

    Srun().command(["node1", "node2"], settings)

The step overlaps with others of the job and has all that the job has on these hosts. Slurm gives its tasks the
launcher's environment, and broadcasts what the agents are told on standard input.
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
"""Options of ``srun``, whatever the user's ``SLURM_`` variables say; an agent that ends must not take others along."""


@final
@dataclass(frozen=True)
class Srun(AgentStarter):
    """Agents of all hosts, also of the launcher's own, are tasks of one job step.

    With a starter for what is ``elsewhere``, that is those of the allocation's ``nodes`` alone.
    """

    nodes: frozenset[str] = frozenset()
    elsewhere: AgentStarter | None = None

    def groups(self, hosts: Sequence[str], here: str) -> list[StarterGroup]:
        """One group of all hosts, or of all nodes, and those of the starter for the others."""
        ours = tuple(dict.fromkeys(host for host in hosts if self.elsewhere is None or host in self.nodes))
        others = [host for host in hosts if host not in ours]
        groups = [StarterGroup(self, ours)] if ours else []
        return groups if self.elsewhere is None else [*groups, *self.elsewhere.groups(others, here)]

    def command(self, hosts: Sequence[str], settings: Settings, module: str = MODULE) -> list[str]:
        """Each host gets one task, which knows its host by Slurm's variable."""
        number = str(len(hosts))
        where = ["--nodes", number, "--ntasks", number, "--nodelist", ",".join(hosts)]
        return ["srun", *OPTIONS, "--input=all", *where, *entry_command(module)]

    def explain(self, hosts: Sequence[str], code: int, said: str) -> str:
        """The errors that ``srun`` and the agents wrote."""
        lines = [line.strip().removeprefix("farandole: ") for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if "error:" in line or "cannot join" in line or "No module named" in line]
        reason = f": {'; '.join((errors or lines)[-3:])}" if lines else ""
        return (
            f"the srun that starts the agents of {', '.join(hosts)} {describe(code)}{reason} "
            "(--launcher ssh starts them without Slurm)"
        )
