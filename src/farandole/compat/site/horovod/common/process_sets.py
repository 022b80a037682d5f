"""Process sets, for all frameworks."""

from __future__ import annotations

from farandole.runtime.collectives.basics import add_process_set, remove_process_set
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
