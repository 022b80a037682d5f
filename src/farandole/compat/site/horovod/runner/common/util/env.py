"""Rank and size from environment variables of the launcher."""

from __future__ import annotations

import os

from farandole.cluster.detect import detect


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and number of started processes, before ``init``; 0 and 1 for a single process."""
    found = detect(os.environ)
    return found.worker_id, found.size
