"""The config of an agent that a launcher sends: one line of JSON on its standard input.

line = msgspec.json.encode(LaunchedAgentConfig(["tcp://10.0.0.1:7000"], secret, "hostA"))
"""

from __future__ import annotations

from typing import final

from farandole.control.agent_messages import StartWorkers
from farandole.runtime.relay.agent import AgentConfig

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
