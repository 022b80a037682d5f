"""The two ends in a job, each with one name on the way from where it is noticed to the error that a user reads.

>>> WorkerExited(3, -9, "rank 3 on hostA was killed by SIGKILL").code
-9

An agent notices ``WorkerExited``, and the launcher puts it in words; it goes on by the controller and its formation
to the exit policy of a static job, or to the membership of an elastic one and its journal. ``GenerationEnded`` follows
from it, or from an engine that failed or a call that stalled. They are facts. The orders that go with them have names
of their own: ``AbortGeneration`` and ``EndNow`` to the controller, ``Abort`` to the workers.
"""

from __future__ import annotations

from typing import final

import msgspec


@final
class WorkerExited(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, repr_omit_defaults=True):
    """The process of a worker has ended, or could not be started: ``code`` as ``waitpid`` gives it.

    ``description`` is for people, and empty until somebody knows how the job calls its workers. ``tail`` are the last
    lines of its standard error, and ``error`` says why it could not be started. ``out_of_memory``: it was killed, and
    the kernel has just killed a process of that host because memory ran out.
    """

    worker_id: int
    code: int
    description: str = ""
    host: str = ""
    pid: int = -1
    tail: str = ""
    error: str = ""
    out_of_memory: bool = False


@final
class GenerationEnded(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, repr_omit_defaults=True):
    """The generation has ended for all, though each of its processes may live: an engine failed, a call stalled."""

    generation: int
    reason: str
