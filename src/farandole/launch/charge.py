"""What an agent is told when it is started, as one line of JSON on its standard input.

line = msgspec.json.encode(Charge("tcp://127.0.0.1:7000", secret, "hostA", StartWorkers([...])))
"""

from __future__ import annotations

from typing import final

import msgspec

from farandole.control.agent_messages import StartWorkers

MODULE = "farandole.launch.agent"


@final
class Charge(msgspec.Struct, frozen=True):
    """Where the controller is, the job's secret, what the agent's host is called, and whom to start."""

    address: str
    secret: str
    host: str
    start: StartWorkers
