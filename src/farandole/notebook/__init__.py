"""Notebooks: engines of IPython Parallel become ranks, whose cells train.

import ipyparallel as ipp

rc = ipp.Cluster(n=4).start_and_connect_sync()
ranks = farandole.notebook.attach(rc)
"""

from farandole.notebook.attaching import attach as attach
from farandole.notebook.ranks import EngineRanks as EngineRanks

__all__ = ["EngineRanks", "attach"]
