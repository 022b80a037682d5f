"""Words of Slurm: the commands that leases need, and what their replies mean. Pure.

>>> jobs("3|RUNNING|1795441552|1795441852|node[1-2]|None")[3].nodes
('node1', 'node2')
>>> ClientReply(1, "", "sbatch: error: Batch job submission failed: Access/permission denied").words
'Batch job submission failed: Access/permission denied'

Recorded from Slurm 22.05. Later releases say some things otherwise, so a reply that is not understood counts as none: a
job that was overlooked would be taken for gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import final

import msgspec

from farandole.cluster import hostlist
from farandole.launch.leases.scheduler import CallRefused, CallUnanswered, JobPhase, JobView

NOT_FOUND = 127
"""Exit status that stands for a command which could not be started, as in a shell."""

_FIELDS = "%K|%T|%S|%e|%N|%r"
"""Index, state, start, end, nodes, reason: the last may have anything in it."""

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
"""Every state that ``squeue --states`` knows."""

TIED = "Dependency"
"""Reason of a job that somebody has released and that is tied to its lead still: it starts when ``untie`` is done."""

_HELD_BY = {
    "JobHeldUser": JobPhase.HELD,
    TIED: JobPhase.HELD,
    "JobHoldMaxRequeue": JobPhase.HELD,
    "JobHeldAdmin": JobPhase.BARRED,
}
"""Reasons for which a pending job does not run before it is released."""

_UNREACHABLE = (
    "unable to contact slurm controller", "could not establish a configuration source",
    "unable to process configuration file",
)  # fmt: skip
_AWAY = (
    *_UNREACHABLE, "socket timed out", "zero bytes were transmitted", "standby mode",
    "protocol authentication error", "communication connection failure", "communication shutdown failure",
    "message send failure", "message receive failure",
    # What ``scontrol release`` and ``update`` make of any of these.
    "unexpected message received",
)  # fmt: skip
_STARTED = ("no longer pending execution",)
_GONE = ("invalid job id", "already finished", "already completed", "already completing")
_RELEASED = ("requested partition configuration not available", "requested node configuration is not available")
"""Complaints of a release that has been made: the job waits, for a partition or nodes that it cannot have now."""

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
"""Patterns of refusals to submit, and what a person can do then; the first that fits counts."""

_PREFIX = re.compile(r"(?:(?:sbatch|squeue|sinfo|scancel|scontrol): )?(?:(?:error|fatal): )?(?:slurm_\w+ error: )?")
_JOB = re.compile(r"^\d+(_\d+)?: |,? for job \d+(_\d+)?$")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


@final
class ClientReply(msgspec.Struct, frozen=True):
    """Output of a command of Slurm; ``code`` is as in ``subprocess``, ``None`` if it took too long and was killed."""

    code: int | None
    out: str
    err: str

    @property
    def words(self) -> str:
        """Errors in one line, without the names of commands and of the job."""
        lines = (_JOB.sub("", _PREFIX.sub("", line.strip(), count=1)) for line in (self.err or self.out).splitlines())
        return "; ".join(dict.fromkeys(line for line in lines if line)) or f"exit status {self.code}, without a word"

    @property
    def is_of_nothing(self) -> bool:
        """True if there is no such job, or no more."""
        return self.code != 0 and self._says(_GONE)

    @property
    def is_of_ended(self) -> bool:
        """True if it shows, as ``told_of`` reads it, a job that has ended."""
        return has_ended(self.out.strip().partition("|")[0])

    @property
    def is_untied(self) -> bool:
        """True if a job waits for its lead no more: it was untied, or has started."""
        return self.code == 0 or self._says(_STARTED)

    @property
    def is_released(self) -> bool:
        """True if a release has been made, also one that is complained about."""
        return self.code == 0 or self._says(_RELEASED)

    def failure(self, call: str, subject: str) -> CallRefused | CallUnanswered:
        """The answer for a call that was not done: refused if Slurm has said so, unanswered otherwise."""
        if self.code is None or self.code <= 0 or self._says(_AWAY):
            return CallUnanswered(call, subject, self.words)
        return CallRefused(call, subject, self.words + (remedy(self.words) if call == "submit" else ""))

    def _says(self, words: tuple[str, ...]) -> bool:
        said = (self.out + self.err).lower()
        return any(each in said for each in words)


def is_unreachable(words: str) -> bool:
    """True if a command of Slurm has found no Slurm, in these words of its own, and so has done nothing.

    >>> is_unreachable("Could not establish a configuration source")
    True
    """
    return any(each in words.lower() for each in _UNREACHABLE)


def remedy(refusal: str) -> str:
    """Remedy of a person whose submission is refused in these words, to be put after them; "" if nobody knows one.

    >>> remedy("Invalid qos specification")
    ' -- write --qos NAME (sacctmgr show assoc user=$USER format=account,qos)'
    """
    found = (text for pattern, text in _SUBMIT_REMEDIES if re.search(pattern, refusal, re.IGNORECASE))
    text = next(found, "")
    return f" -- {text}" if text else ""


def submission(count: int, nonce: str, lead: str = "") -> list[str]:
    """The command that submits an array of held jobs, with its script on standard input.

    Jobs that are tied to the job of a ``lead`` are cancelled by slurmctld when that has ended without success and is
    not queued again, whatever it died of; see ``tie``.

    The nonce is the script's argument. Slurm keeps it with the path of the script, shows both wherever it shows jobs,
    and makes nothing of it: a comment, which would show as well, some sites read; other fields it does not show, or
    ignores without accounting.
    """
    if not nonce.isalnum():
        raise ValueError(f"the nonce {nonce!r} is no word of letters and digits")
    tied = ["--kill-on-invalid-dep=yes", *([f"--dependency={_after(lead)}"] if lead else [])]
    return ["sbatch", "--parsable", "--hold", "--no-requeue", *tied, f"--array=0-{count - 1}", "/dev/stdin", nonce]


def tie(array: str, lead: str) -> list[str]:
    """The command that ties an array to its lead, where that was submitted later; held jobs stay held."""
    return ["scontrol", "update", f"JobId={array}", f"Dependency={_after(lead)}"]


def untie(job: str) -> list[str]:
    """The command that unties a job that is to start: it would wait for the end of its lead."""
    return ["scontrol", "update", f"JobId={job}", "Dependency="]


def _after(lead: str) -> str:
    return f"afterok:{lead}"


def submitted(out: str) -> str:
    """The number of an array that was submitted: ``812``, or ``812;CLUSTER``; "" if there is none."""
    number = out.strip().partition(";")[0]
    return number if number.isdecimal() else ""


def own_jobs() -> list[str]:
    """The command that shows this user's jobs to ``found``. It costs slurmctld a look at all jobs."""
    return ["squeue", "--noheader", "--all", "--me", "--format=%F|%o"]


def found(out: str, nonce: str) -> str:
    """The number of the array with this nonce; "" if there is none."""
    for line in out.splitlines():
        number, _, command = line.partition("|")
        if command.split()[-1:] == [nonce] and number.strip().isdecimal():
            return number.strip()
    return ""


def queue(job: str) -> list[str]:
    """The command that shows the jobs of an array, or one, to ``jobs``; that of one number asks slurmctld for no other.

    Not ``--json``, which asks for all jobs of all users, and differs between releases.
    """
    return ["squeue", "--noheader", "--all", "--array", f"--jobs={job}", f"--format={_FIELDS}"]


def jobs(out: str) -> dict[int, JobView]:
    """The jobs that ``squeue`` shows, by index. Raises ``ValueError`` for what is not understood."""
    seen = {}
    for line in filter(None, map(str.strip, out.splitlines())):
        numbers, _, rest = line.partition("|")
        if numbers != "N/A":
            view = _view(rest)
            seen.update(dict.fromkeys(_indices(numbers), view))
    return seen


NO_JOB = ClientReply(1, "", "Invalid job id specified")
"""Reply for ``told_of`` of a job that is not known any more."""


def has_ended(state: str) -> bool:
    """True if a job in this state of Slurm's has ended, and comes not again."""
    return _PHASES.get(state) is JobPhase.GONE


def state_of(job: str) -> list[str]:
    """The command that shows the state of one job to ``told_of``, also for some minutes after it has ended."""
    return ["squeue", "--noheader", "--all", "--states=all", f"--jobs={job}", "--format=%T|%r"]


def own_states() -> list[str]:
    """The command that shows the states of all jobs of this user to ``states``."""
    return ["squeue", "--noheader", "--all", "--me", "--states=all", "--format=%i|%T|%r"]


def states(out: str) -> dict[str, ClientReply]:
    """Replies for ``told_of`` by the numbers of jobs."""
    lines = (line.strip().partition("|") for line in out.splitlines())
    return {job: ClientReply(0, shown, "") for job, _, shown in lines}


def told_of(job: str, reply: ClientReply) -> str:
    """Words on a job that does not run; "" for one that does, or where that is not known.

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
    """The command that shows which of these nodes are being drained, or have been, to ``drained``."""
    wanted = [f"--nodes={','.join(names)}", "--states=drain,fail"]
    return ["sinfo", "--Node", "--noheader", "--all", *wanted, "--format=%N|%E"]


def drained(out: str) -> dict[str, str]:
    """The nodes that ``sinfo`` shows, with the reason that was given; a node is shown once for each partition."""
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
    """``3-6,9,10-14:2%2``: as ``squeue`` writes the jobs of an array that share a line."""
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part.strip("[]"))
        if match is None:
            raise ValueError(f"the jobs {text!r} of an array are not understood")
        yield from range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
