"""Formation of the generations of a job of fixed size; without any I/O.

    formation = StaticFormation(expected=2, start_timeout_s=30.0, excuse_failures=False, choose=choose_engine)
    formation.hello(b"7f3a", hello, now)
    formation.decide(now)              # None: a worker is missing. Later Formed(...), or Refused(...) with the reason

A generation forms when every worker that has not exited has sent ``Hello``. Previous members keep their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import final

from farandole.control.exits import GenerationEnded, WorkerExited
from farandole.control.messages import Hello
from farandole.engines.choose import choose
from farandole.errors import FarandoleError
from farandole.runtime.coordination.formation import (
    Choose,
    Formation,
    Formed,
    Member,
    Refused,
    Roster,
    WaitInInit,
    disagreement,
)
from farandole.runtime.coordination.process_groups import ProcessGroups
from farandole.runtime.coordination.rank_names import by_saying, list_some, name_numbers
from farandole.settings import Settings


@final
class StaticFormation(Formation):
    """Forms generations from ``Hello``s. ``excuse_failures``: the job may start without workers that failed earlier."""

    def __init__(self, expected: int, start_timeout_s: float, excuse_failures: bool, choose: Choose) -> None:
        super().__init__()
        self._expected = expected
        self._start_timeout_s = start_timeout_s
        self._excuse_failures = excuse_failures
        self._choose = choose
        self._waiting: dict[int, Member] = {}  # by worker_id
        self._strangers: list[Refused] = []
        self._ends: dict[tuple[int, int], tuple[WorkerExited, bool]] = {}
        """Exits by job size and ``worker_id`` in it, each with True if the job continues without that worker."""
        self._started: dict[int, str] = {}
        self._homes: dict[int, str] = {}
        self._sizes: Counter[int] = Counter()  # job sizes that the waiting workers expect
        self._latest: tuple[Member, ...] = ()
        self._roster = Roster((), expected)
        self._first_hello_s: float | None = None
        self._generation = 0

    @classmethod
    def of(cls, settings: Settings, expected: int) -> StaticFormation:
        """Make the formation for these settings."""
        engine = partial(choose, settings.engine, across=settings.across)
        return cls(expected, settings.start_timeout_s, settings.on_failure == "continue", engine)

    # -- events -------------------------------------------------------------------------------------------------------

    def started(self, worker_id: int, description: str) -> None:
        """Record that the worker of ``worker_id`` runs, for texts that describe a missing worker."""
        self._started[worker_id] = description

    def turn_away(self, uid: bytes, hello: Hello) -> str:
        """Refuse a ``worker_id`` that does not exist or is in use, and a version other than that of the running job."""
        member = Member(uid, hello)
        reason = self._objection(member)
        if reason:
            self._strangers.append(Refused((member,), reason))
        return reason

    def hello(self, uid: bytes, hello: Hello, now: float) -> None:
        """Process the ``Hello`` of a worker, which has called ``init``."""
        self._dismiss(hello.worker_id)
        self.registry.enter(uid, hello)
        self._waiting[hello.worker_id] = Member(uid, hello)
        self._sizes[hello.expected] += 1
        if self._first_hello_s is None:
            self._first_hello_s = now

    def worker_exited(self, event: WorkerExited) -> None:
        """Process a worker's exit. The exit of a former member is excused, and a failure if ``excuse_failures``."""
        worker_id, size = event.worker_id, self._expected
        self.registry.free_worker_id(worker_id)
        excused = event.code != 0 and self._excuse_failures
        rank = self._roster.find(worker_id, event.pid)
        worker = self._latest[rank] if rank is not None else self._waiting_worker(worker_id, event.pid)
        if worker is not None:
            worker_id, size = worker.hello.worker_id, worker.hello.expected
            excused = excused or rank is not None
            self._dismiss(worker_id)
        self._ends[size, worker_id] = event, excused
        if not self._waiting:
            self._first_hello_s = None

    def left(self, worker_id: int, ending: bool, told: bool) -> None:
        """See ``Formation``."""
        self.registry.free_worker_id(worker_id)

    def answered(self, worker_id: int) -> None:
        """Ignored: no generation waits for the members of the previous one."""

    def generation_ended(self, event: GenerationEnded) -> None:
        """Ignored: the next generation forms from ``Hello``s alone."""

    def longest_step(self, worker_id: int, step_s: float) -> None:
        """Ignored: no limit here depends on the duration of steps."""

    def stalled(self, worker_ids: Collection[int], reason: str) -> bool:
        """False: the other workers cannot continue without these."""
        return False

    def _objection(self, newcomer: Member) -> str:
        hello = newcomer.hello
        if not 0 <= hello.worker_id < min(hello.expected, self._expected):
            text = f"expects ranks 0 to {self._expected - 1}, and this process says it is rank {hello.worker_id}"
            return f"the job {text} of {hello.expected}"
        if self._latest and hello.version != (version := self._latest[0].hello.version):
            return (
                f"the job runs Farandole {version}, and {newcomer.name} has {hello.version}: install the same version"
            )
        if taken := self.registry.objection(hello):
            return taken
        home = self._homes.get(hello.worker_id) if hello.expected == self._expected else None
        if home and home != hello.host:
            return f"rank {hello.worker_id} is on {home}, not on {hello.host}: is the job started twice?"
        return ""

    def _waiting_worker(self, worker_id: int, pid: int) -> Member | None:
        members = list(self._waiting.values())
        index = Roster([member.hello for member in members], self._expected).find(worker_id, pid)
        return None if index is None else members[index]

    def _dismiss(self, worker_id: int) -> None:
        member = self._waiting.pop(worker_id, None)
        if member is not None:
            self._sizes -= Counter({member.hello.expected: 1})

    # -- decisions ----------------------------------------------------------------------------------------------------

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``decide`` refuses because a worker is late; ``None`` while no worker waits."""
        return None if self._first_hello_s is None else self._first_hello_s + self._start_timeout_s

    def decide(self, now: float) -> Formed | Refused | None:
        """Next generation, a refusal, or ``None`` as long as neither is due. Call it until it returns ``None``."""
        if self._strangers:
            return self._strangers.pop(0)
        if not self._waiting or self._is_early(now):
            return None
        sizes = {worker_id: member.hello.expected for worker_id, member in self._waiting.items()}
        size = max(sizes.values())
        if size > min(*sizes.values(), self._expected):
            said = by_saying({worker_id: str(own) for worker_id, own in sizes.items()}, self._host_by_worker_id())
            return self._refuse(
                f"the ranks differ in the size of the job, which was started for {self._expected}: {said}"
            )
        ends = {worker_id: end for (job, worker_id), end in sorted(self._ends.items()) if job == size}
        lost = [event.description for event, excused in ends.values() if not excused]
        if lost:
            return self._refuse(f"the job cannot start: {'; '.join(lost)}, before it had called init()")
        missing = [worker_id for worker_id in range(size) if worker_id not in self._waiting and worker_id not in ends]
        if not missing:
            return self._form()
        if self.deadline_s is not None and now >= self.deadline_s:
            return self._refuse(self._too_late(missing))
        return None

    def _is_early(self, now: float) -> bool:
        """True if a worker is missing and nothing can be wrong yet; cheap, because it runs after each ``Hello``."""
        few = len(self._waiting) < min(self._sizes) and not self._ends
        in_time = self.deadline_s is not None and now < self.deadline_s
        return few and in_time and len(self._sizes) == 1 and max(self._sizes) <= self._expected

    def _form(self) -> Formed | Refused:
        seniority = {member.hello.worker_id: rank for rank, member in enumerate(self._latest)}
        order = sorted(self._waiting, key=lambda worker_id: (seniority.get(worker_id, self._expected), worker_id))
        members = tuple(self._waiting[worker_id] for worker_id in order)
        error = disagreement(members) or _misfit(members)
        if error:
            return self._refuse(error)
        try:
            engine, reason = self._choose(
                [member.hello.host for member in members], [member.hello.engines for member in members]
            )
        except FarandoleError as failure:
            return self._refuse(str(failure))
        self._generation += 1
        if len(members) == self._expected:
            self._homes = {member.hello.worker_id: member.hello.host for member in members}
        self._latest, self._roster = members, Roster([member.hello for member in members], self._expected)
        self._clear()
        return Formed(self._generation, members, engine, reason)

    def _refuse(self, reason: str) -> Refused:
        members = tuple(self._waiting.values())
        self._clear()
        return Refused(members, reason)

    def _clear(self) -> None:
        self._waiting, self._sizes = {}, Counter()
        self._first_hello_s = None

    def waits(self) -> WaitInInit | None:
        """See ``Formation``."""
        if self._first_hello_s is None or not self._waiting:
            return None
        here = tuple(self._waiting.values())
        gone = {worker_id for _, worker_id in self._ends}
        missing = [each for each in range(max(self._sizes)) if each not in self._waiting and each not in gone]
        who = list_some([member.name for member in here])
        return WaitInInit(self._first_hello_s, here, who, self._names(missing)) if missing else None

    def _names(self, missing: list[int]) -> str:
        names = [self._started.get(worker_id, f"rank {worker_id}") for worker_id in missing]
        return ", ".join(names) if len(names) <= 4 or self._started else name_numbers(missing)

    def _too_late(self, missing: list[int]) -> str:
        who = self._names(missing)
        have = "has" if len(missing) == 1 else "have"
        return (
            f"{who} {have} not called init() within {self._start_timeout_s:g} s of the first rank that did: "
            "look at its output, or give it more time with --start-timeout (FARANDOLE_START_TIMEOUT_S)"
        )

    def _host_by_worker_id(self) -> list[str]:
        hosts = ["?"] * self._expected
        for worker_id, member in self._waiting.items():
            hosts[worker_id] = member.hello.host
        return hosts


def _misfit(members: Sequence[Member]) -> str:
    """Reason why a job of these members cannot have the process sets passed to ``init``, or ""."""
    groups = ProcessGroups(len(members))
    errors = [error for ranks in members[0].hello.process_sets if (error := groups.add(ranks)[1])]
    return f"init(process_sets=...) cannot be: {errors[0]}" if errors else ""
