"""Journal of plans: the inputs of each plan, from which it can be computed again.

    note("cache/plans", PlanRecord.of(3, entries, staging, manifest.digest))
    for record, staging in replay(lines): ...          # raises if this version plans otherwise

Whenever hosts agree on a plan, rank 0 appends a line of JSON to ``plans`` in the cache of its host, and with
``--elastic-journal FILE`` to ``FILE.data``. ``farandole data replay`` computes all plans again and prints them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from typing import final

import msgspec
import numpy as np
import xxhash

from farandole.data.planning.plan import StagingPlan
from farandole.data.staging.host_plan import planned
from farandole.data.staging.protocol import HostEntry
from farandole.errors import UsageError

SUFFIX = ".data"
"""Suffix of the file, beside the journal of the job."""

MOST_BYTES = 2**24
"""Size beyond which the file is begun anew: a cache outlives many jobs."""


@final
class PlanRecord(msgspec.Struct, frozen=True):
    """One line: the inputs of a plan, and a digest of the result. ``sizes`` are 64-bit integers, deflated.

    ``manifest`` is the digest of the data set.
    """

    generation: int
    hosts: list[HostEntry]
    sizes: bytes
    digest: str
    manifest: str = ""

    @classmethod
    def of(cls, generation: int, entries: list[HostEntry], staging: StagingPlan, manifest: str) -> PlanRecord:
        """Record of a plan for ``entries``."""
        return cls(generation, entries, zlib.compress(staging.sizes.tobytes()), digest(staging), manifest)


def note(path: str, record: PlanRecord) -> None:
    """Append a plan to the file at ``path``. Raises ``OSError`` if the file cannot be written."""
    is_full = os.path.exists(path) and os.path.getsize(path) > MOST_BYTES
    with open(path, "wb" if is_full else "ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def digest(staging: StagingPlan) -> str:
    """Digest of a plan, 32 hex digits."""
    found = xxhash.xxh3_128(msgspec.msgpack.encode(staging.names))
    for column in (staging.copies, staging.reads, staging.streamed, *staging.sends, *staging.drops):
        found.update(np.ascontiguousarray(column).tobytes())
    return found.hexdigest()


def replay(lines: Iterable[bytes]) -> Iterator[tuple[PlanRecord, StagingPlan]]:
    """Compute each plan again. Raises ``UsageError`` at the first that differs, and at a line that is no record."""
    for number, line in enumerate(lines, 1):
        try:
            record = msgspec.json.decode(line, type=PlanRecord)
            staging = planned(record.hosts, np.frombuffer(zlib.decompress(record.sizes), np.int64))
        except (msgspec.MsgspecError, zlib.error, ValueError) as error:
            raise UsageError(f"line {number} is no plan of this version: {error}") from error
        if digest(staging) != record.digest:
            raise UsageError(f"line {number}: this version makes another plan of generation {record.generation}")
        yield record, staging
