"""Names of the Unix sockets of a process, as the kernel lists them.

names_held()    # {"@farandole-writer-0123"}, as no other process can be meant
"""

from __future__ import annotations

import os
from pathlib import Path


def names_held(pid: int | None = None) -> set[str]:
    """Names and paths of the sockets that descriptors of this process, or of ``pid``, hold."""
    mine, folder = set(), f"/proc/{'self' if pid is None else pid}/fd"
    for each in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{each}")
        except FileNotFoundError:  # the descriptor of the listing
            continue
        mine.add(target.removeprefix("socket:[").removesuffix("]"))
    rows = (line.split(None, 7) for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return {row[7] for row in rows if len(row) > 7 and row[6] in mine}
