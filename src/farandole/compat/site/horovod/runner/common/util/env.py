"""Rank and size, from the variables of whatever started this process."""

from __future__ import annotations

import os

from farandole.cluster.detect import detect


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and number of processes that were started, before ``init``; 0 and 1 for a process by itself."""
    found = detect(os.environ)
    return found.worker_id, found.size
