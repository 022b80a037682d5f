"""Rows and phases of the table of faults inside one host: engines, memory, newcomers, and the script's results."""

from __future__ import annotations

from workbench.survival.cases import Do, FaultCase, other
from workbench.survival.fault_injection import NEWCOMER, Chunk, FaultAction, ScheduledFault, injected
from workbench.survival.job import TraineeJob
from workbench.survival.records import TrainingPlan

SHUTDOWN = "shutdown"
KILLED = 128 + 9

PLAN = TrainingPlan(hidden=8192)
"""Gradients of 393 kB: each rank reduces its part of them in four chunks."""

OPTIONS = (
    *("--elastic-timeout", "10", "--elastic-journal", "/dev/full"),
    *("--stall-check-shutdown-time-seconds", "10"),
)
"""Ten seconds for a newcomer to build its model, and a journal on a full disk. Ten seconds, too, until a worker that
does something else is given up: by default ten minutes, because an endless loop looks like a long validation.
"""


def chunk(which: Chunk, rank: int, quick: bool = False) -> FaultCase:
    """A rank ends in the engine, with a part of its gradients reduced in the memory of all ranks."""
    return FaultCase(
        f"end of rank {rank} in the all-reduce",
        f"reduce, {which}",
        [ScheduledFault("reduce", rank, which)],
        quick=quick,
    )


def newcomer(name: str, phase: str, action: FaultAction, after: Do, quick: bool = False) -> FaultCase:
    """The worker that replaces a killed one is faulty."""
    faults = [ScheduledFault("reduce", 3), ScheduledFault(phase, NEWCOMER, action, later=True)]
    return FaultCase(name, phase, faults, after=after, quick=quick)


def slow(action: FaultAction, after: Do | None = None, quick: bool = False) -> FaultCase:
    """A few steps of a rank take longer; it must not be given up for that."""
    return FaultCase(
        f"rank 1 is {action}",
        "forward",
        [ScheduledFault("forward", 1, action)],
        after=after,
        harmless=True,
        quick=quick,
    )


def said(text: str) -> Do:
    """Wait until the launcher or a worker prints ``text``."""
    return lambda job, _: job.until(lambda: text in job.errors, f"{text!r} in what the job says")


def skipped(action: FaultAction, quick: bool = False) -> FaultCase:
    """A rank's gradients are not finite: no rank may step with them."""
    name = f"{action} in the loss of rank 2 (with a GradScaler)"
    return FaultCase(
        name, "backward", [ScheduledFault("backward", 2, action)], after=_all_skipped, harmless=True, quick=quick
    )


def _all_skipped(job: TraineeJob, number: int) -> None:
    """All ranks skip the same step, and have the same parameters and the same scale afterwards.

    If the step that was hit is an epoch's last, the next step is skipped: ``Trainee`` spoils no last step.
    """
    [hit] = injected(job.folder, number)

    def found() -> dict[str, tuple[int, float, str]]:
        skipped = [each for each in job.skipped() if hit.step <= each.step <= hit.step + 1]
        return {each.worker: (each.step, each.scale, each.digest) for each in skipped}

    members = job.generation()
    job.until(lambda: len(found()) == len(members), f"all ranks skip step {hit.step}")
    assert len(set(found().values())) == 1, f"ranks differ after step {hit.step}, which all skipped: {found()}"


def _trains_without(job: TraineeJob, number: int) -> None:
    """A newcomer starts and never gets ready: the others train, until it is given up and replaced."""
    job.until(lambda: len(injected(job.folder, number)) == 2, "a newcomer")
    last = job.generation()[0].generation
    job.until_steps(3)
    assert max(each.generation for each in job.generation_records()) == last, (
        "a newcomer that is not ready has stopped the others"
    )
    said("was given up after 10 s: it builds its model")(job, number)


def _refused(job: TraineeJob, number: int) -> None:
    """A newcomer is refused, and no generation is tried with it: the next one has its replacement."""
    last = job.generation()[0].generation
    said("the ranks differ in what they train")(job, number)
    whole = job.until_whole(after=last)
    assert whole[0].generation == last + 1, "the others have waited for a worker that cannot train with them"


def join_and_leave(job: TraineeJob, _number: int) -> None:
    """A slot is offered, and withdrawn before its worker is ready, or on a slow machine as soon as it is."""
    (host, slots), *_ = job.hosts.items()
    begun, dismissed = job.decided("Start"), job.decided("Dismiss")
    job.offer({host: slots + 1})
    job.until(lambda: job.decided("Start") > begun, "a worker is started")
    job.offer(job.hosts)
    job.until(lambda: "is there no more" in job.errors or job.decided("Dismiss") > dismissed, "it is ended again")


def below_and_back(job: TraineeJob, _number: int) -> None:
    """Slots are withdrawn until too few are left, then offered again: nothing is lost, and workers that can stay do."""
    (host, slots), *_ = job.hosts.items()
    before, dismissed = job.generation(), job.decided("Dismiss")
    job.offer({host: 1})
    job.until(lambda: job.decided("Dismiss") > dismissed, "the others end")
    job.offer({host: slots})
    whole = job.until_whole(after=before[0].generation)
    stayed = {each.worker for each in before} & {each.worker for each in whole}
    assert len(stayed) == 1, f"{len(stayed)} workers stayed, and one had a slot all the time"


def more(number: int) -> FaultCase:
    """``number`` workers join at once, and leave again."""

    def do(job: TraineeJob, _number: int) -> None:
        (host, slots), *_ = job.hosts.items()
        last = job.generation()[0].generation
        job.offer({host: slots + number})
        grown = job.until_whole(slots + number, after=last)
        job.offer(job.hosts)
        job.until_whole(after=grown[0].generation)

    return FaultCase(f"{number} join at once, and leave", "any", done=do, planned=True)


def _end(job: TraineeJob, _number: int) -> None:
    (job.folder / "end").touch()


TRANSFER = [ScheduledFault("reduce", 3), ScheduledFault("transfer", 0, "damage", later=True)]
STALE = [ScheduledFault("reduce", 3), ScheduledFault("synced", 0, "stale", later=True)]
NO_ROOM = [
    ScheduledFault("reduce", 3),
    ScheduledFault("reform", 1, "no room", later=True),
    ScheduledFault("reform", 1, "room", later=True),
]

INSIDE = (
    chunk("first chunk", 3),
    chunk("middle chunk", 0, quick=True),
    chunk("last chunk", 1),
    slow("2 x slower"),
    slow("10 x slower"),
    slow("100 x slower", after=said("in _dawdle"), quick=True),
    skipped("nan", quick=True),
    skipped("inf"),
    FaultCase(
        "a bit of the state flips on its way", "transfer", TRANSFER, after=said("damaged on the way"), quick=True
    ),
    FaultCase("messages of the previous generation", "synced", STALE, quick=True),
    newcomer("a newcomer with another model", "building", "other model", _refused, quick=True),
    FaultCase("a slot is added and removed in one window", "any", done=join_and_leave, harmless=True),
    FaultCase("fewer slots than --min-np, then all again", "any", done=below_and_back, planned=True),
    more(10),
)
"""Faults on one host with four slots, like ``ONE_HOST``, with this ``PLAN``."""

LACKING = (
    FaultCase("no memory to share on rank 1", "reduce, then connect", NO_ROOM),
    newcomer("a newcomer never becomes ready", "building", "stop", _trains_without),
    other("loop", "vote", 3, "an endless loop"),
)
"""Faults on one host that lacks memory, disk and patience: with these ``OPTIONS``."""

LAST = (
    FaultCase(
        "SIGKILL of rank 0 after the end of its training",
        SHUTDOWN,
        [ScheduledFault(SHUTDOWN, 0, later=True)],
        done=_end,
        planned=True,
        status=KILLED,
    ),
)
"""The others end well; the job exits with the status of the killed worker."""
