"""Detection of the starter of this process.

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
"""Environments in the order of checking; the first that recognises the variables is used."""


def detect(variables: Mapping[str, str] | None = None) -> Environment:
    """Environment that ``variables`` (default: those of this process) describe. A notebook seat has priority."""
    if variables is None and (seated := engine.environment()) is not None:
        return seated
    told = os.environ if variables is None else variables
    return next(e for e in ENVIRONMENTS if e.recognises(told))(told)
