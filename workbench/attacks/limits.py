"""Memory limit for a few processes, which the kernel enforces by killing one of them.

    with memory_group(50 * 2**20) as members:
        members.write_text(str(pid))          # from now on this process must not have more

It needs root and a writable control group, of either version; otherwise it raises ``UnavailableError``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from workbench.cluster import UnavailableError

GROUPS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
    (Path("/sys/fs/cgroup/unified"), "memory.max"),
)


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Yield the file to which a process writes its number to come under the limit; all must exit inside the block."""
    name = f"farandole-attack-{os.getpid()}"
    for root, limit in GROUPS:
        group = root / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists():
                (group / limit).write_text(str(limit_bytes))
                yield group / "cgroup.procs"
                return
        finally:
            group.rmdir()
    raise UnavailableError("no control group that limits memory can be made here: docker run --privileged ...")
