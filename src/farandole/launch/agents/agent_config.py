"""Config of an agent, sent by a launcher: one line of JSON on its standard input.

line = msgspec.json.encode(LaunchedAgentConfig(["tcp://10.0.0.1:7000"], secret, "hostA"))
"""

from __future__ import annotations

from typing import final

import msgspec

from farandole.control.agent_messages import StartWorkers
from farandole.runtime.relay.agent import AgentConfig
from farandole.settings import Settings

DIAL_SHARE = 0.5
"""Share of the start timeout for an agent to find the controller, so that it can still report a failure."""

MODULE = "farandole.launch.agents.agent"


@final
class LaunchedAgentConfig(AgentConfig, frozen=True):
    """Config of an agent that starts workers; ``host`` "": the name that Slurm gives.

    With ``start``, in a job on one host, the agent starts these workers first; without it, the agent connects to the
    first address that answers within ``dial_s``, and the controller orders which workers to start. In an elastic job it
    ``stays`` even without workers, until it is told to end.
    """

    start: StartWorkers | None = None
    command: tuple[str, ...] = ()
    """Command of all workers here, run in the agent's folder; empty: the launcher's command and folder."""
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    """Variables of all workers here; a worker's own variables override them."""
    dial_s: float = 0.0
    stays: bool = False

    @classmethod
    def of(cls, settings: Settings, addresses: list[str], secret: str) -> LaunchedAgentConfig:
        """Config from settings; the caller adds host, name and workers."""
        return cls(
            addresses,
            secret,
            silence_s=settings.host_timeout_s,
            interface=settings.network_interface,
            ports=settings.ports,
            dial_s=DIAL_SHARE * settings.start_timeout_s,
        )
