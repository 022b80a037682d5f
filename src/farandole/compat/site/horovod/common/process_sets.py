"""Process sets, for all frameworks."""

from __future__ import annotations

from farandole.runtime.basics import add_process_set, remove_process_set
from farandole.runtime.process_sets import ProcessSet, global_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
