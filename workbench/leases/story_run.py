"""Run of a training over several jobs of a real Slurm, without ordered sizes: its decisions, and its ledger.

story = play(slurm, folder)
list(check(story, folder))              # [], if it went as it is told; story.py tells it
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, final

from farandole.launch.leases.actions import EndLease, Release
from farandole.launch.leases.folder_thread import JOURNAL
from farandole.launch.leases.journal import LeaseRecord, read_records, replay
from farandole.launch.leases.lease import LeasePhase
from workbench.cluster import URGENT, SlurmCluster

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "leases_digits.py"
SAMPLES = range(360, 1797)
"""Numbers of the digits in the training set."""
EPOCHS = 11
ENOUGH = 0.93
"""Accuracy at which the user wants fewer workers."""
MOST = 8
POLICY = """\
# Minutes of a cluster as seconds.
look-pending-s = 2.0
look-s = 5.0
leave-s = 8.0
advice-apart-s = 6.0
opposite-s = 8.0
"""
URGENT_S = 20
STAYS_S = 5.0
"""Time between the second growth and the urgent job."""
DEADLINE_S = 600.0


class StoryError(AssertionError):
    """Raised if the training did not follow the story."""


@final
class Story(NamedTuple):
    """Story of one run: its decisions, the time of the urgent job, and the samples of each worker, by step."""

    records: list[LeaseRecord]
    preempted_s: float
    steps: dict[int, list[tuple[int, tuple[int, ...]]]]
    """Size and sample numbers of each worker in a step."""
    said: str

    def sizes(self) -> list[int]:
        """Numbers of workers, in sequence."""
        found: list[int] = []
        for step in sorted(self.steps):
            size = self.steps[step][0][0]
            if found[-1:] != [size]:
                found.append(size)
        return found

    def goals(self) -> list[tuple[int, str]]:
        """Goals of the policy with their reasons, in sequence."""
        found: list[tuple[int, str]] = []
        for record in self.records:
            goal = record.after.goal, record.after.why
            if not found or found[-1][0] != goal[0]:
                found.append(goal)
        return found

    def mistakes(self) -> Iterator[str]:
        """Sentences on surplus or missing samples in the ledger: none, if each sample counts once in each epoch."""
        if sorted(self.steps) != list(range(1, len(self.steps) + 1)):
            yield "steps are missing"
        for step, workers in sorted(self.steps.items()):
            if {size for size, _ in workers} != {len(workers)}:
                yield f"step {step} was made by {len(workers)} workers, of {sorted({size for size, _ in workers})}"
        counts = Counter(number for workers in self.steps.values() for _, own in workers for number in own)
        wrong = {number: counts[number] for number in SAMPLES if counts[number] != EPOCHS}
        if wrong or set(counts) - set(SAMPLES):
            yield f"{len(wrong)} samples were not trained on {EPOCHS} times, so {dict(list(wrong.items())[:5])}"


def play(slurm: SlurmCluster, folder: Path) -> Story:
    """Play the training in a folder that all hosts see; raises ``StoryError`` if it gets stuck."""
    folder.chmod(0o700)
    (folder / "policy.toml").write_text(POLICY)
    (folder / "ledger").mkdir()
    _submit(slurm, folder)
    lead = _wait(lambda: _lines(slurm, "--name=fdl-run-lead", "--format=%i"), folder, "for the lead in the queue")[0]
    _wait(lambda: _grown_for(folder) > STAYS_S or not _lines(slurm, f"--jobs={lead}"), folder, "for the second growth")
    preempted_s = time.time()
    lease = next(iter(_lines(slurm, "--name=fdl-run", "--states=RUNNING", "--format=%N")), "")
    if not lease:
        raise StoryError(f"no lease runs that could be preempted:\n{(folder / 'lead.out').read_text()[-6000:]}")
    urgent = [f"--partition={URGENT}", f"--nodelist={lease}", "--exclusive", "--output=/dev/null"]
    slurm.run(["sbatch", *urgent, f"--wrap=sleep {URGENT_S}"])
    _wait(lambda: not _lines(slurm, f"--jobs={lead}", "--format=%i"), folder, "for the end")
    return Story(_records(folder), preempted_s, _ledger(folder), (folder / "lead.out").read_text())


def _submit(slurm: SlurmCluster, folder: Path) -> None:
    sizes = ["--min-np", "2", "--max-np", str(MOST), "-N", "1", "--lease", "1x2@1h", "--batch", "grow"]
    rule = ["--when", f"val_acc>={ENOUGH}", "--then", "np=2,nice=1000"]
    where = ["--run-folder", str(folder / "run"), "-o", "lead.out", "--policy", "policy.toml", "--sbatch=--exclusive"]
    quick = ["--start-timeout", "90", "--host-timeout", "5"]
    asked = ["--epochs", str(EPOCHS), "--device-s", "0.4", "--advise-s", "2", "--ledger", str(folder / "ledger")]
    command = [sys.executable, str(SCRIPT), *asked]
    farandole = [sys.executable, "-m", "farandole", "submit", *sizes, *rule, *where, *quick, *command]
    slurm.run(farandole, cwd=folder, env={**os.environ, "XDG_CONFIG_HOME": str(folder)})


def _lines(slurm: SlurmCluster, *options: str) -> list[str]:
    return slurm.run(["squeue", "--noheader", "--array", *options], check=False).stdout.split()


def _wait(condition: Callable[[], Sequence[str] | bool], folder: Path, what: str) -> Sequence[str]:
    until_s = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        if time.monotonic() > until_s:
            said = folder / "lead.out"
            raise StoryError(f"waited in vain {what}:\n{said.read_text()[-6000:] if said.exists() else ''}")
        time.sleep(0.2)  # nothing announces what a queue and a file show
    return found if not isinstance(found, bool) else []


def _records(folder: Path) -> list[LeaseRecord]:
    path = folder / "run" / JOURNAL
    if not path.exists():
        return []
    with open(path) as lines:
        return list(read_records(lines))


def _grown_for(folder: Path) -> float:
    """Seconds for which more than half of the most workers have trained, by the last decision."""
    since_s = now_s = 0.0
    for record in _records(folder):
        now_s = record.seen.now_s
        since_s = (since_s or now_s) if record.seen.have > MOST / 2 else 0.0
    return now_s - since_s if since_s else 0.0


def _ledger(folder: Path) -> dict[int, list[tuple[int, tuple[int, ...]]]]:
    steps: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for path in sorted((folder / "ledger").iterdir()):
        for line in path.read_text().splitlines():
            step, size, *numbers = map(int, line.split())
            steps[step].append((size, tuple(numbers)))
    return dict(steps)


def check(story: Story, folder: Path) -> Iterator[str]:
    """Sentences on deviations from the story: none, if all went well."""
    yield from story.mistakes()
    goals = [goal for goal, _ in story.goals()]
    grown = [why for goal, why in story.goals() if "advice has agreed" in why]
    if len(grown) < 2 or goals[0] != 2 or goals[-1] != 2 or "val_acc" not in story.goals()[-1][1]:
        yield f"the goals were {story.goals()}"
    leaves = [each for record in story.records for each in record.decisions if isinstance(each.action, EndLease)]
    if not leaves or "its scheduler wants it back (SIGTERM)" not in story.said:
        yield "no lease was preempted, or none was ended"
    if not any(isinstance(each.action, Release) for record in story.records for each in record.decisions):
        yield "no lease was released"
    gone = {lease.job for record in story.records for lease in record.seen.leases if lease.phase is LeasePhase.GONE}
    if not gone:
        yield "no lease has ended"
    with open(folder / "run" / JOURNAL) as lines:
        yield from map(str, replay(lines))
