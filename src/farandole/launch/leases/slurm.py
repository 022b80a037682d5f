"""Slurm through its commands, run one after the other without blocking the caller's loop.

    slurm = SlurmScheduler(os.environ)
    slurm.look("812")
    wait_for(slurm.fds, until=slurm.deadline_s)
    slurm.answers()                     # [Looked(array='812', jobs={0: JobView(phase=<JobPhase.HELD: 'held'>, ...)})]

At most one command runs at a time, because slurmctld is shared and some sites limit the rate of calls. A call may need
several commands; it is a generator that yields commands, receives their replies and returns the answer.

``scontrol update Nice=`` releases a held job, even one that an administrator holds (22.05: a priority of 0, which is
what holds it, becomes 2). So ``set_nice`` looks at the job first, and refuses if it is held. A hold in the few
milliseconds between would be lost: no command for users compares and sets atomically.

An unanswered ``submit`` may still wait in the socket queue of slurmctld after ``sbatch`` is dead (seen with a stopped
and continued slurmctld). Call ``find`` when calls are answered again; an array that appears even later is held, and
does no harm.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

from farandole.control.program_run import ProgramRun
from farandole.errors import UsageError
from farandole.launch.leases import slurm_words as words
from farandole.launch.leases.scheduler import (
    Answer,
    CallDone,
    CallRefused,
    CallUnanswered,
    JobPhase,
    Looked,
    NodesLooked,
    Scheduler,
    Submitted,
)
from farandole.launch.leases.slurm_words import ClientReply
from farandole.launch.sbatch.environment import client_environment, lease_environment

PATIENCE_S = 60.0
"""Timeout of a command; without slurmctld each command retries by itself, for ``SlurmctldTimeout`` (default 120 s)."""


class _Command(NamedTuple):
    words: list[str]
    stdin: str = ""


_Call: TypeAlias = Generator[_Command, ClientReply, Answer]


class _Asked(NamedTuple):
    """A call with its name and subject, which the answer needs if a command times out."""

    name: str
    subject: str
    call: _Call


@final
class SlurmScheduler(Scheduler):
    """Slurm, as the user of this process; ``variables``: the environment, with the ``PATH`` of its commands.

    A command that runs longer than ``patience_s`` is killed, and its call counts as unanswered. Single-threaded.
    """

    holds = True

    def __init__(self, variables: Mapping[str, str], patience_s: float = PATIENCE_S) -> None:
        self._job, self._client = lease_environment(variables), client_environment(variables)
        self._patience_s = patience_s
        self._lead = variables.get("SLURM_JOB_ID", "")
        self._waiting: deque[_Asked] = deque()
        self._current: _Asked | None = None
        self._run: ProgramRun | None = None
        self._until_s = 0.0
        self._ended: list[ProgramRun] = []  # kept open while the loop may still watch their fds
        self._answers: list[Answer] = []

    def submit(self, script: str, count: int, nonce: str) -> None:
        """Begin ``sbatch --hold``. Jobs get the ``variables`` without secrets, which Slurm would store.

        Submitted inside the leader's job, they depend on it: when that job is gone for good, held jobs are cancelled.
        """
        self._queue_call("submit", nonce, _submit(_Command(words.submission(count, nonce, self._lead), script), nonce))

    def find(self, nonce: str) -> None:
        """Begin a query of this user's jobs, which costs slurmctld about ten times as much as a query of one array."""
        self._queue_call("find", nonce, _find(nonce))

    def look(self, array: str) -> None:
        """Begin ``squeue`` for one array."""
        self._queue_call("look", array, _look(array))

    def look_at_nodes(self, nodes: Sequence[str]) -> None:
        """Begin ``sinfo``, which requests all nodes from slurmctld, and no jobs."""
        self._queue_call("look_at_nodes", "", _look_at_nodes(tuple(nodes)))

    def start(self, job: str) -> None:
        """Begin ``scontrol release``, and remove the job's dependency on the end of its leader's job."""
        self._queue_call("start", job, _start(job))

    def cancel(self, job: str) -> None:
        """Begin ``scancel`` of one job or array, in any state: a query before it could be out of date."""
        self._queue_call("cancel", job, _cancel(job))

    def set_limit(self, job: str, minutes: int) -> None:
        """Begin ``scontrol update TimeLimit=``; for a running job only an administrator may raise the limit."""
        self._queue_call("set_limit", job, _update("set_limit", job, f"TimeLimit={minutes}"))

    def set_nice(self, job: str, nice: int) -> None:
        """Begin ``scontrol update Nice=``; refused for a held job, which Slurm would release."""
        self._queue_call("set_nice", job, _set_nice(job, nice))

    def answers(self) -> list[Answer]:
        """Answers that arrived since the last call, in the order of their calls. Does not block."""
        while self._ended:
            self._ended.pop().close()
        while self._run is not None and self._has_ended(self._run):
            reply = _reply(self._run, self._patience_s)
            self._run.end()
            self._ended.append(self._run)
            self._run = None
            self._go_on(reply)
        answers, self._answers = self._answers, []
        return answers

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of the running command: its output and its exit."""
        return self._run.fds if self._run is not None else ()

    @property
    def deadline_s(self) -> float | None:
        """Time at which the running command is killed; 0 if answers are waiting."""
        if self._answers:
            return 0.0
        return self._until_s if self._run is not None else None

    def close(self) -> None:
        """Kill the running command, and drop all calls. Idempotent."""
        self._waiting.clear()
        if self._run is not None:
            self._run.end()
            self._ended.append(self._run)
        self._run = self._current = None
        while self._ended:
            self._ended.pop().close()

    def _queue_call(self, name: str, subject: str, call: _Call) -> None:
        self._waiting.append(_Asked(name, subject, call))
        if self._current is None:
            self._go_on(None)

    def _go_on(self, reply: ClientReply | None) -> None:
        """Advance the calls, starting with ``reply``, until a command runs or no call is left."""
        while self._current is not None or self._waiting:
            if self._current is None:
                self._current, reply = self._waiting.popleft(), None
            name, subject, call = self._current
            try:
                # A timed-out command ends its call, even if more commands would follow.
                if reply is not None and reply.code is None:
                    call.close()
                    self._add_answer(CallUnanswered(name, subject, reply.words))
                    continue
                reply = self._begin(next(call) if reply is None else call.send(reply))
            except StopIteration as done:
                self._add_answer(done.value)
                continue
            if reply is None:
                return

    def _add_answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._current = None

    def _begin(self, command: _Command) -> ClientReply | None:
        """Start a command; return a reply only if it cannot be started."""
        is_sbatch = command.words[0] == "sbatch"
        try:
            self._run = ProgramRun(
                command.words, stdin=command.stdin.encode(), environment=self._job if is_sbatch else self._client
            )
        except (UsageError, OSError) as error:  # not found, or out of descriptors or processes
            return ClientReply(words.NOT_FOUND, "", str(error))
        self._until_s = time.monotonic() + self._patience_s
        return None

    def _has_ended(self, run: ProgramRun) -> bool:
        run.attend()
        return run.code is not None or time.monotonic() >= self._until_s


def _reply(run: ProgramRun, patience_s: float) -> ClientReply:
    out, err = (said.decode(errors="replace") for said in run.said)
    if run.code is None:
        err = f"it has not answered for {patience_s:g} s\n{err}"
    return ClientReply(run.code, out, err)


def _submit(command: _Command, nonce: str) -> _Call:
    reply = yield command
    number = words.submitted(reply.out)
    return Submitted(nonce, number) if reply.code == 0 and number else reply.failure("submit", nonce)


def _find(nonce: str) -> _Call:
    reply = yield _Command(words.own_jobs())
    return reply.failure("find", nonce) if reply.code else Submitted(nonce, words.found(reply.out, nonce))


def _look(array: str) -> Generator[_Command, ClientReply, Looked | CallRefused | CallUnanswered]:
    reply = yield _Command(words.queue(array))
    if reply.is_of_nothing:
        return Looked(array, {})
    if reply.code:
        return reply.failure("look", array)
    try:
        jobs = words.jobs(reply.out)
    except (ValueError, UsageError) as error:
        return CallUnanswered("look", array, str(error))
    for index in [index for index, view in jobs.items() if view.reason == words.TIED]:
        yield _Command(words.untie(f"{array.partition('_')[0]}_{index}"))  # released by hand; see the next look
    return Looked(array, jobs)


def _look_at_nodes(nodes: tuple[str, ...]) -> _Call:
    reply = yield _Command(words.nodes(nodes))
    return reply.failure("look_at_nodes", "") if reply.code else NodesLooked(nodes, words.drained(reply.out))


def _start(job: str) -> _Call:
    reply = yield _Command(["scontrol", "release", job])
    if not reply.is_released:
        return reply.failure("start", job)
    reply = yield _Command(words.untie(job))
    return CallDone("start", job) if reply.is_untied else reply.failure("start", job)


def _cancel(job: str) -> _Call:
    reply = yield _Command(["scancel", job])
    is_done = reply.code == 0 or reply.is_of_nothing
    return CallDone("cancel", job) if is_done else reply.failure("cancel", job)


def _update(name: str, job: str, change: str) -> _Call:
    reply = yield _Command(["scontrol", "update", f"JobId={job}", change])
    return CallDone(name, job) if reply.code == 0 else reply.failure(name, job)


def _set_nice(job: str, nice: int) -> _Call:
    looked = yield from _look(job)
    if not isinstance(looked, Looked):
        return (
            type(looked)("set_nice", job, looked.words) if isinstance(looked, CallUnanswered | CallRefused) else looked
        )
    phases = {view.phase for view in looked.jobs.values()}
    if phases & {JobPhase.HELD, JobPhase.BARRED}:
        return CallRefused("set_nice", job, "it is held, and a change of Nice would release it")
    return (yield from _update("set_nice", job, f"Nice={nice}"))
