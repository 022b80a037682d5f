"""What the ranks of a job do that somebody else starts, and what they say of themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

FACTS = """
import json, os, sys
import numpy as np
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls

def tell(**what):
    os.write(1, (json.dumps(what) + "\\n").encode())

def join(when, **how):
    init(**how)
    t, x = current().topology, np.ones(1000)
    x *= 2.0 ** t.rank
    NumpyCalls().allreduce("x", x)
    tell(when=when, rank=t.rank, size=t.size, local=[t.local_rank, t.local_size], cross=[t.cross_rank, t.cross_size],
         host=t.host, sum=x[0], place=place)
    shutdown()

place = int(next(os.environ[name] for name in
                 ("FARANDOLE_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID") if name in os.environ))
"""
"""``join("again")`` joins, prints the facts of this rank in one line, and leaves."""

LOSES = (
    FACTS
    + """
import time
from farandole.errors import CollectiveError
init()
x, do = np.ones(1000), NumpyCalls()
do.allreduce("x", x)
tell(when="ready", rank=current().topology.rank, pid=os.getpid())
finished = time.monotonic()
try:
    while True:
        do.allreduce("x", x)
        finished = time.monotonic()
except CollectiveError as error:
    tell(when="raised", rank=place, kind=type(error).__name__, text=str(error), waited_s=time.monotonic() - finished)
if "again" in sys.argv:
    shutdown()
    join("again")
"""
)
"""Reduces for ever, says what ends it and how long that took, and goes on with those that are left if it is told to."""


def told(output: str, when: str) -> list[dict[str, Any]]:
    """The lines that ranks said at some time, by rank."""
    lines = [json.loads(line[line.index("{") :]) for line in output.splitlines() if line.rstrip().endswith("}")]
    return sorted((line for line in lines if line["when"] == when), key=lambda line: int(line["rank"]))


def column(facts: Iterable[dict[str, Any]], name: str) -> list[Any]:
    """One fact of each."""
    return [each[name] for each in facts]
