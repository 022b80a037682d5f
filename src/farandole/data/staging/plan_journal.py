"""Journal of plans: the inputs of each plan, from which it can be computed again.

    note("job.journal.data", generation=3, entries=entries, staging=staging)
    for record, staging in replay(lines): ...          # raises if this version plans otherwise

In a job with ``--elastic-journal FILE`` rank 0 appends a line of JSON to ``FILE.data`` whenever hosts agree on
a plan. ``python -m farandole.data.staging.plan_journal FILE.data`` computes all plans again and prints them.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import final

import msgspec
import numpy as np
import xxhash

from farandole.data.planning.plan import StagingPlan
from farandole.data.planning.simulate import readable
from farandole.data.staging.host_plan import planned
from farandole.data.staging.protocol import HostEntry
from farandole.errors import UsageError

SUFFIX = ".data"
"""Suffix of the file, beside the journal of the job."""


@final
class PlanRecord(msgspec.Struct, frozen=True):
    """One line: the inputs of a plan, and a digest of the result. ``sizes`` are 64-bit integers, deflated."""

    generation: int
    hosts: list[HostEntry]
    sizes: bytes
    digest: str


def note(path: str, generation: int, entries: list[HostEntry], staging: StagingPlan) -> None:
    """Append a plan to the file at ``path``. Raises ``OSError`` if the file cannot be written."""
    sizes = zlib.compress(staging.sizes.tobytes())
    with open(path, "ab") as file:
        file.write(msgspec.json.encode(PlanRecord(generation, entries, sizes, digest(staging))) + b"\n")


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


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m farandole.data.staging.plan_journal FILE", file=sys.stderr)
        return 2
    try:
        with Path(arguments[0]).open("rb") as lines:
            for record, staging in replay(lines):
                hosts = ", ".join(f"{each.name}{' (leaves)' * each.leaving}" for each in record.hosts)
                print(
                    f"generation {record.generation}: {readable(staging.data_bytes)} on {hosts}; "
                    f"read {readable(staging.read_bytes)}, copied {readable(staging.sent_bytes)}"
                )
    except (OSError, UsageError) as error:
        print(f"farandole: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
