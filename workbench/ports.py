"""Ports of this machine on which processes listen, for attacks on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def listening(pids: Iterable[int]) -> list[int]:
    """TCP ports on which these processes listen now; processes that have exited meanwhile have none."""
    sockets = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):  # it has closed this one, or has ended, meanwhile
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    sockets.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    own = [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    return [int(row[1].rpartition(":")[2], 16) for row in own]
