"""Waits for what nothing announces: what another thread has read, a file, an entry of ``/proc``."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.patience import PATIENCE_S

LOOK_S = 0.005


def until(condition: Callable[[], bool], what: str = "") -> None:
    """Look again and again until ``condition`` holds; fail after ``PATIENCE_S``."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain {what}"
        time.sleep(LOOK_S)
