"""Agent of this host: a child of the launcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from farandole.control.entry import entry_command
from farandole.control.process import describe
from farandole.launch.agents.agent_config import MODULE
from farandole.launch.agents.agents import AgentStarter, StarterGroup
from farandole.settings import Settings


@final
class Local(AgentStarter):
    """Starter of one agent, on this host."""

    def groups(self, hosts: Sequence[str], here: str) -> list[StarterGroup]:
        """One group: all hosts are this one."""
        return [StarterGroup(self, tuple(dict.fromkeys(hosts)))]

    def command(self, hosts: Sequence[str], settings: Settings, module: str = MODULE) -> list[str]:
        """Command of a new Python process that runs the agent."""
        return entry_command(module)

    def explain(self, hosts: Sequence[str], code: int, said: str) -> str:
        """Text on the exit of the agent; its output is on the launcher's standard error, or in ``said``."""
        lines = [line.removeprefix("farandole: ") for line in said.splitlines() if line.strip()]
        reason = f" ({lines[-1]})" if lines else ""
        return f"the agent on {', '.join(hosts)} {describe(code)}{reason}; its workers were killed"
