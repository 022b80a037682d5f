"""The config of an agent that a launcher sends: one line of JSON on its standard input.

line = msgspec.json.encode(LaunchedAgentConfig(["tcp://10.0.0.1:7000"], secret, "hostA"))
"""

from __future__ import annotations

from typing import final

from farandole.control.agent_messages import StartWorkers
from farandole.runtime.relay.agent import AgentConfig
from farandole.settings import Settings

DIAL_SHARE = 0.5
"""Share of the start time-out for an agent to look for the controller, so that it can still say that it found none."""

MODULE = "farandole.launch.agents.agent"


@final
class LaunchedAgentConfig(AgentConfig, frozen=True):
    """Config of an agent that starts workers; a ``host`` "" is what Slurm calls it.

    With ``start``, in a job on one host, the agent starts the workers before it does anything else; without, it takes
    the first address that answers within ``dial_s``, and is told by the controller whom to start. In an elastic job it
    ``stays`` when it has no workers, until it is told to end.
    """

    start: StartWorkers | None = None
    dial_s: float = 0.0
    stays: bool = False

    @classmethod
    def of(cls, settings: Settings, addresses: list[str], secret: str) -> LaunchedAgentConfig:
        """Config as these settings ask for it; host, name and workers are the caller's to add."""
        return cls(
            addresses,
            secret,
            silence_s=settings.host_timeout_s,
            interface=settings.network_interface,
            ports=settings.ports,
            dial_s=DIAL_SHARE * settings.start_timeout_s,
        )
