"""The config of an agent, which it reads when it starts: one line of JSON on its standard input.

line = msgspec.json.encode(AgentConfig(["tcp://10.0.0.1:7000"], secret, "hostA"))
"""

from __future__ import annotations

from typing import final

import msgspec

from farandole.control.agent_messages import StartWorkers

MODULE = "farandole.launch.agents.agent"


@final
class AgentConfig(msgspec.Struct, frozen=True):
    """Addresses of the controller, the job's secret, and the name of the agent's host ("": as Slurm calls it).

    With ``start``, in a job on one host, the agent starts the workers before it does anything else; without, it takes
    the first address that answers within ``dial_s``, and is told by the controller whom to start. ``silence_s`` is how
    long either may be silent (0: as long as it likes). With ``relay`` the workers are reached through the agent, which
    is to be reached by ``interface`` ("": by any).

    In an elastic job it ``stays`` when it has no workers, until it is told to end, and calls itself ``name``: its host
    may have come back while the controller still holds the connection of its last agent.
    """

    addresses: list[str]
    secret: str
    host: str = ""
    start: StartWorkers | None = None
    dial_s: float = 0.0
    silence_s: float = 0.0
    relay: bool = False
    interface: str = ""
    stays: bool = False
    name: str = ""
