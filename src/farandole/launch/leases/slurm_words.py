"""Slurm's vocabulary: the commands that leases need, and how their output is parsed. Pure.

>>> jobs("3|RUNNING|1795441552|1795441852|node[1-2]|None")[3].nodes
('node1', 'node2')
>>> ClientReply(1, "", "sbatch: error: Batch job submission failed: Access/permission denied").words
'Batch job submission failed: Access/permission denied'

Recorded from Slurm 22.05. Later releases differ in places, so output that cannot be parsed counts as no answer: an
overlooked job would be taken for gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import final

import msgspec

from farandole.cluster import hostlist
from farandole.launch.leases.scheduler import CallRefused, CallUnanswered, JobPhase, JobView

NOT_FOUND = 127
"""Exit status for a command that could not be started, as in a shell."""

_FIELDS = "%K|%T|%S|%e|%N|%r"
"""Index, state, start, end, nodes, reason. The reason is last because it may contain any character."""

_PHASES = {
    "PENDING": JobPhase.PENDING,
    "REQUEUED": JobPhase.PENDING,
    "REQUEUE_FED": JobPhase.PENDING,
    "REQUEUE_HOLD": JobPhase.HELD,
    "SPECIAL_EXIT": JobPhase.HELD,
    "RESV_DEL_HOLD": JobPhase.HELD,
    "CONFIGURING": JobPhase.RUNNING,
    "RUNNING": JobPhase.RUNNING,
    "RESIZING": JobPhase.RUNNING,
    "SIGNALING": JobPhase.RUNNING,
    "SUSPENDED": JobPhase.SUSPENDED,
    "STOPPED": JobPhase.SUSPENDED,
    "COMPLETING": JobPhase.ENDING,
    "STAGE_OUT": JobPhase.ENDING,
} | dict.fromkeys(
    (
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "REVOKED", "TIMEOUT",
    ),
    JobPhase.GONE,
)  # fmt: skip
"""Phases of all states of ``squeue --states``."""

TIED = "Dependency"
"""Reason of a job that was released by hand and still depends on its leader's job: it starts after ``untie``."""

_HELD_BY = {
    "JobHeldUser": JobPhase.HELD,
    TIED: JobPhase.HELD,
    "JobHoldMaxRequeue": JobPhase.HELD,
    "JobHeldAdmin": JobPhase.BARRED,
}
"""Reasons for which a pending job waits for a release."""

_UNREACHABLE = (
    "unable to contact slurm controller", "could not establish a configuration source",
    "unable to process configuration file",
)  # fmt: skip
_AWAY = (
    *_UNREACHABLE, "socket timed out", "zero bytes were transmitted", "standby mode",
    "protocol authentication error", "communication connection failure", "communication shutdown failure",
    "message send failure", "message receive failure",
    # Output of ``scontrol release`` and ``update`` for any of these.
    "unexpected message received",
)  # fmt: skip
_STARTED = ("no longer pending execution",)
_GONE = ("invalid job id", "already finished", "already completed", "already completing")
_RELEASED = ("requested partition configuration not available", "requested node configuration is not available")
"""Errors printed although the release succeeded: the job waits for a partition or nodes that are unavailable now."""

_TOO_MANY = (
    "you have as many jobs as you may, and each lease of an array counts: take fewer with --leases N, or let others "
    "end (sacctmgr show assoc user=$USER format=account,maxsubmitjobs)"
)
_NOT_HERE = (
    "jobs may not be submitted from this node (AllocNodes of the partition): what is held already can still start; for "
    "more, submit with more --leases N"
)
_SUBMIT_REMEDIES = (
    (r"Max\w*Submit\w*Limit|MaxSubmit|job submit limit", _TOO_MANY),
    (r"access/permission denied", _NOT_HERE),
    (r"invalid account|account/partition", "write --account NAME (sacctmgr show assoc user=$USER)"),
    (r"invalid partition|partition not available", "write --partition NAME (sinfo --summarize)"),
    (r"invalid qos", "write --qos NAME (sacctmgr show assoc user=$USER format=account,qos)"),
    (r"invalid job array", "an array may not be so long here: write --leases N (scontrol show config | grep MaxArray)"),
    (r"time limit", "leases may not be so long here: write --lease with a shorter time (sinfo --format='%P %l')"),
)  # fmt: skip
"""Patterns of submission errors, and the remedy for the user; the first match counts."""

_PREFIX = re.compile(r"(?:(?:sbatch|squeue|sinfo|scancel|scontrol): )?(?:(?:error|fatal): )?(?:slurm_\w+ error: )?")
_JOB = re.compile(r"^\d+(_\d+)?: |,? for job \d+(_\d+)?$")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


@final
class ClientReply(msgspec.Struct, frozen=True):
    """Output of a Slurm command; ``code`` is as in ``subprocess``, ``None`` if it timed out and was killed."""

    code: int | None
    out: str
    err: str

    @property
    def words(self) -> str:
        """Error messages in one line, without the names of commands and of the job."""
        lines = (_JOB.sub("", _PREFIX.sub("", line.strip(), count=1)) for line in (self.err or self.out).splitlines())
        return "; ".join(dict.fromkeys(line for line in lines if line)) or f"exit status {self.code}, without a word"

    @property
    def is_of_nothing(self) -> bool:
        """True if the job does not exist, or no longer."""
        return self.code != 0 and self._says(_GONE)

    @property
    def is_of_ended(self) -> bool:
        """True if this output of ``state_of`` shows a job that has ended."""
        return has_ended(self.out.strip().partition("|")[0])

    @property
    def is_untied(self) -> bool:
        """True if a job no longer depends on its leader's job: it was untied, or has started."""
        return self.code == 0 or self._says(_STARTED)

    @property
    def is_released(self) -> bool:
        """True if a release succeeded, even with an error message."""
        return self.code == 0 or self._says(_RELEASED)

    def failure(self, call: str, subject: str) -> CallRefused | CallUnanswered:
        """The answer for a failed call: refused if Slurm refused it, unanswered otherwise."""
        if self.code is None or self.code <= 0 or self._says(_AWAY):
            return CallUnanswered(call, subject, self.words)
        return CallRefused(call, subject, self.words + (remedy(self.words) if call == "submit" else ""))

    def _says(self, words: tuple[str, ...]) -> bool:
        said = (self.out + self.err).lower()
        return any(each in said for each in words)


def is_unreachable(words: str) -> bool:
    """True if this error text of a Slurm command means that it found no slurmctld, and so had no effect.

    >>> is_unreachable("Could not establish a configuration source")
    True
    """
    return any(each in words.lower() for each in _UNREACHABLE)


def remedy(refusal: str) -> str:
    """Remedy for a refused submission, to append to Slurm's message ``refusal``; "" if none is known.

    >>> remedy("Invalid qos specification")
    ' -- write --qos NAME (sacctmgr show assoc user=$USER format=account,qos)'
    """
    found = (text for pattern, text in _SUBMIT_REMEDIES if re.search(pattern, refusal, re.IGNORECASE))
    text = next(found, "")
    return f" -- {text}" if text else ""


def submission(count: int, nonce: str, lead: str = "") -> list[str]:
    """The command that submits an array of held jobs, with its script on standard input.

    Jobs that depend on the job of a ``lead`` (the leader) are cancelled by slurmctld when that job has failed, for any
    reason, and is not requeued; see ``tie``.

    The nonce is the script's argument. Slurm stores it with the path of the script, shows both wherever it shows jobs,
    and does not interpret it. A comment would be shown as well, but some sites parse comments; other fields are not
    shown, or are ignored without accounting.
    """
    if not nonce.isalnum():
        raise ValueError(f"the nonce {nonce!r} is no word of letters and digits")
    tied = ["--kill-on-invalid-dep=yes", *([f"--dependency={_after(lead)}"] if lead else [])]
    return ["sbatch", "--parsable", "--hold", "--no-requeue", *tied, f"--array=0-{count - 1}", "/dev/stdin", nonce]


def tie(array: str, lead: str) -> list[str]:
    """The command that makes an array depend on its leader's job, if submitted before it; held jobs stay held."""
    return ["scontrol", "update", f"JobId={array}", f"Dependency={_after(lead)}"]


def untie(job: str) -> list[str]:
    """The command that removes the dependency of a job, which otherwise waits for the end of its leader's job."""
    return ["scontrol", "update", f"JobId={job}", "Dependency="]


def _after(lead: str) -> str:
    return f"afterok:{lead}"


def submitted(out: str) -> str:
    """The number of a submitted array from ``812`` or ``812;CLUSTER``; "" if there is none."""
    number = out.strip().partition(";")[0]
    return number if number.isdecimal() else ""


def own_jobs() -> list[str]:
    """The command whose output ``found`` parses: this user's jobs. slurmctld has to scan all jobs for it."""
    return ["squeue", "--noheader", "--all", "--me", "--format=%F|%o"]


def found(out: str, nonce: str) -> str:
    """The number of the array with this nonce; "" if there is none."""
    for line in out.splitlines():
        number, _, command = line.partition("|")
        if command.split()[-1:] == [nonce] and number.strip().isdecimal():
            return number.strip()
    return ""


def queue(job: str) -> list[str]:
    """The command whose output ``jobs`` parses: the jobs of an array, or one job; slurmctld reads no other jobs.

    Not ``--json``, which requests all jobs of all users, and differs between releases.
    """
    return ["squeue", "--noheader", "--all", "--array", f"--jobs={job}", f"--format={_FIELDS}"]


def jobs(out: str) -> dict[int, JobView]:
    """The jobs in the output of ``squeue``, by index. Raises ``ValueError`` for output that cannot be parsed."""
    seen = {}
    for line in filter(None, map(str.strip, out.splitlines())):
        numbers, _, rest = line.partition("|")
        if numbers != "N/A":
            view = _view(rest)
            seen.update(dict.fromkeys(_indices(numbers), view))
    return seen


NO_JOB = ClientReply(1, "", "Invalid job id specified")
"""Reply for ``told_of`` if Slurm no longer knows the job."""


def has_ended(state: str) -> bool:
    """True if a job in this Slurm state has ended and is not requeued."""
    return _PHASES.get(state) is JobPhase.GONE


def state_of(job: str) -> list[str]:
    """The command whose output ``told_of`` reads: the state of one job, up to some minutes after its end."""
    return ["squeue", "--noheader", "--all", "--states=all", f"--jobs={job}", "--format=%T|%r"]


def own_states() -> list[str]:
    """The command whose output ``states`` parses: the states of all jobs of this user."""
    return ["squeue", "--noheader", "--all", "--me", "--states=all", "--format=%i|%T|%r"]


def states(out: str) -> dict[str, ClientReply]:
    """Replies for ``told_of``, by job number."""
    lines = (line.strip().partition("|") for line in out.splitlines())
    return {job: ClientReply(0, shown, "") for job, _, shown in lines}


def told_of(job: str, reply: ClientReply) -> str:
    """Text on a job that does not run; "" if it runs, or if its state is unknown.

    >>> told_of("32", ClientReply(0, "PENDING|BeginTime", ""))
    'its job 32 waits (BeginTime)'
    """
    if reply.is_of_nothing:
        return f"its job {job} has ended"
    shown, _, reason = reply.out.strip().partition("\n")[0].partition("|")
    phase = _PHASES.get(shown)
    if phase in (JobPhase.PENDING, JobPhase.HELD):
        return f"its job {job} waits ({reason})"
    return f"its job {job} has ended ({shown})" if phase is JobPhase.GONE else ""


def nodes(names: Sequence[str]) -> list[str]:
    """The command whose output ``drained`` parses: which of these nodes are being drained or are drained."""
    wanted = [f"--nodes={','.join(names)}", "--states=drain,fail"]
    return ["sinfo", "--Node", "--noheader", "--all", *wanted, "--format=%N|%E"]


def drained(out: str) -> dict[str, str]:
    """The nodes in the output of ``sinfo``, with their reasons; ``sinfo`` lists a node once for each partition."""
    lines = (line.strip().partition("|") for line in out.splitlines())
    return {name: "" if reason == "none" else reason for name, _, reason in lines if name}


def _view(text: str) -> JobView:
    fields = text.split("|", 4)
    if len(fields) != 5 or fields[0] not in _PHASES:
        raise ValueError(f"a job shown as {text!r} is not understood")
    state, start, end, nodes, reason = fields
    phase = _PHASES[state]
    if phase is JobPhase.PENDING:
        phase = _HELD_BY.get(reason, phase)
    has_begun = phase in (JobPhase.RUNNING, JobPhase.SUSPENDED, JobPhase.ENDING)
    return JobView(
        phase,
        hostlist.expand(nodes) if has_begun and nodes else (),
        _time(start) if phase is JobPhase.PENDING else 0.0,
        _time(end) if has_begun else 0.0,
        "" if reason == "None" else reason,
        _time(start) if has_begun else 0.0,
    )


def _time(text: str) -> float:
    """Seconds since 1970; 0 for ``N/A``, ``NONE`` (no limit) and ``Unknown``."""
    return float(text) if text.isdecimal() else 0.0


def _indices(text: str) -> Iterator[int]:
    """Indices in ``3-6,9,10-14:2%2``, the form in which ``squeue`` lists several jobs of an array in one line."""
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part.strip("[]"))
        if match is None:
            raise ValueError(f"the jobs {text!r} of an array are not understood")
        yield from range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
