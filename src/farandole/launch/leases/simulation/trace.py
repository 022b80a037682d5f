"""Traces of a cluster: the jobs of ``sacct -a -P``, or of a file in the Standard Workload Format.

    sacct -a -P -X -S 2026-01-01 -E 2026-01-08 -o JobID,Submit,Start,End,NNodes,State,Timelimit > sacct.txt
    trace = read_trace(Path("sacct.txt"))
    trace.nodes, len(trace.jobs)

The header line of ``sacct`` names its fields. Jobs that never ran are left out, and so are job steps. Times of
``sacct`` are local times, used without conversion. The Standard Workload Format is that of the Parallel Workloads
Archive (Feitelson et al. 2014), with 18 fields a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, final

from farandole.errors import UsageError

NEEDED = ("JobID", "Submit", "Start", "End", "NNodes")
SWF_FIELDS = 18
COMMAND = "sacct -a -P -X -o JobID,Submit,Start,End,NNodes,State,Timelimit"


@final
class TraceJob(NamedTuple):
    """Job of a trace; ``limit_s``: its time limit, or its run time if the limit is unknown."""

    submit_s: float
    start_s: float
    end_s: float
    nodes: int
    limit_s: float


@final
class Trace(NamedTuple):
    """Jobs in order of submission, and the nodes of their cluster; simulation starts ``skipped_s`` after the first."""

    jobs: tuple[TraceJob, ...]
    nodes: int
    skipped_s: float = 0.0

    @property
    def begin_s(self) -> float:
        """Start time of the simulation."""
        return self.jobs[0].submit_s + self.skipped_s

    @property
    def end_s(self) -> float:
        """Time of the last submission: after it the trace shows a cluster emptier than it was."""
        return self.jobs[-1].submit_s


def read_trace(path: Path, nodes: int = 0, skipped_s: float = 0.0) -> Trace:
    """Read the trace of a file. ``nodes``: size of the cluster, by default the most nodes used at one time."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"the trace {path} cannot be read: {error.strerror}") from error
    is_sacct = any("|" in line for line in lines[:1])
    known, jobs = (0, list(_sacct(lines))) if is_sacct else _swf(lines)
    jobs = sorted(job for job in jobs if job.end_s > job.start_s >= job.submit_s and job.nodes > 0)
    if not jobs:
        raise UsageError(f"no job of the trace {path} has run: write it with {COMMAND}")
    trace = Trace(tuple(jobs), nodes or known or most_used(jobs), skipped_s)
    if not 0 <= skipped_s < trace.end_s - jobs[0].submit_s:
        hours = (trace.end_s - jobs[0].submit_s) / 3600
        raise UsageError(f"--begin {skipped_s / 3600:g}: the trace {path} has {hours:.3g} hours; write fewer")
    return trace


def most_used(jobs: Iterable[TraceJob]) -> int:
    """The most nodes that were used at one time."""
    changes = sorted(change for job in jobs for change in ((job.start_s, job.nodes), (job.end_s, -job.nodes)))
    used = most = 0
    for _, nodes in changes:
        used += nodes
        most = max(most, used)
    return most


def _sacct(lines: Sequence[str]) -> Iterator[TraceJob]:
    header = lines[0].strip().rstrip("|").split("|")
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise UsageError(f"the trace has no field {', '.join(missing)}: write it with {COMMAND}")
    for line in lines[1:]:
        row = dict(zip(header, line.strip().split("|"), strict=False))
        if "." in row.get("JobID", "."):
            continue
        times = [_moment(row.get(name, "")) for name in ("Submit", "Start", "End")]
        if None in times or not row.get("NNodes", "").isdigit():
            continue
        submit_s, start_s, end_s = (moment or 0.0 for moment in times)
        limit_s = max(_limit(row.get("Timelimit", "")), end_s - start_s)
        yield TraceJob(submit_s, start_s, end_s, int(row["NNodes"]), limit_s)


def _moment(text: str) -> float | None:
    """Parse a time of ``sacct``: ISO, or seconds since 1970 if ``SLURM_TIME_FORMAT`` asks for them."""
    if text.isdigit():
        return float(text)
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _limit(text: str) -> float:
    """Parse ``DAYS-HOURS:MINUTES:SECONDS`` to seconds; 0 if there is no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text.strip())
    if found is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def _swf(lines: Sequence[str]) -> tuple[int, list[TraceJob]]:
    """Parse jobs, and the nodes of the cluster from the header (0: not given)."""
    header = {key: int(number) for line in lines if (found := _swf_header(line)) for key, number in [found]}
    per_node = max(1, header.get("MaxProcs", 1) // header["MaxNodes"]) if header.get("MaxNodes") else 1
    zero_s = float(header.get("UnixStartTime", 0))
    jobs = []
    for line in lines:
        fields = line.split()
        if line.startswith(";") or not fields:
            continue
        if len(fields) < SWF_FIELDS:
            raise UsageError(f"this line is none of a trace: {line!r}; write the trace with {COMMAND}")
        try:
            submit_s, wait_s, run_s, allocated, _, _, asked, asked_s = (float(field) for field in fields[1:9])
        except ValueError as error:
            raise UsageError(f"this line is none of a trace: {line!r}; write the trace with {COMMAND}") from error
        processors = allocated if allocated > 0 else asked
        start_s = zero_s + submit_s + max(0.0, wait_s)
        nodes = -int(-processors // per_node)
        jobs.append(TraceJob(zero_s + submit_s, start_s, start_s + run_s, nodes, max(asked_s, run_s)))
    return header.get("MaxNodes", 0) or header.get("MaxProcs", 0), jobs


def _swf_header(line: str) -> tuple[str, str] | None:
    found = re.match(r";\s*(MaxNodes|MaxProcs|UnixStartTime):\s*(\d+)", line)
    return (found[1], found[2]) if found else None
