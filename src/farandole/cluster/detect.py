"""Finds out what started this process.

>>> detect({}).name
'single process'
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from farandole.cluster import engine
from farandole.cluster.environment import Environment, Launched, Plain, Single
from farandole.cluster.mpi import Mpi
from farandole.cluster.slurm import Slurm
from farandole.cluster.torchrun import Torchrun

ENVIRONMENTS: tuple[type[Environment], ...] = (Launched, Plain, Torchrun, Mpi, Slurm, Single)
"""Asked in this order; the first that recognises the variables is taken."""


def detect(variables: Mapping[str, str] | None = None) -> Environment:
    """The environment that ``variables`` (by default those of this process) speak of. A seat comes first."""
    if variables is None and (seated := engine.environment()) is not None:
        return seated
    told = os.environ if variables is None else variables
    return next(e for e in ENVIRONMENTS if e.recognises(told))(told)
