"""Fuzzing of a framework: batch after batch of plans on 1, 2 and 3 ranks; findings are repeated, shrunk and printed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final

import msgspec

from workbench.differential.frameworks.batches import run
from workbench.differential.frameworks.judgement import Judgement, judge
from workbench.differential.frameworks.oracle import consult
from workbench.differential.frameworks.plan import FrameworkPlan, PlanTerms

PER_JOB = 50
DEADLINE_S = 60.0


def check(plans: Sequence[FrameworkPlan], size: int, deadline_s: float = DEADLINE_S) -> list[Judgement]:
    """Judgements of plans on jobs of so many ranks: after a plan that ends its job, a new job goes on."""
    found: list[Judgement] = []
    while len(found) < len(plans):
        left = plans[len(found) :]
        batch = run(left, size, deadline_s)
        found += [judge(p, consult(p, size), r) for p, r in zip(left, batch.results, strict=False)]
        if len(found) < len(plans):
            found.append(
                Judgement("hang" if batch.ending == "hang" else "died", size, f"{batch.ending}\n{batch.evidence}")
            )
    return found


@final
class FrameworkFuzzer:
    """Runs plans and keeps count; ``say`` gets every line."""

    def __init__(
        self,
        sizes: Sequence[int],
        folder: Path,
        shrink_s: float,
        most: int,
        deadline_s: float,
        say: Callable[[str], None],
    ) -> None:
        self.kinds: Counter[str] = Counter()
        self.programs = 0
        self.findings: list[str] = []
        self._sizes, self._folder, self._shrink_s, self._most = tuple(sizes), folder, shrink_s, most
        self._deadline_s, self._say = deadline_s, say

    def run(self, plans: Sequence[FrameworkPlan], seconds: float = 0.0) -> None:
        """Check ``plans`` until there are too many findings or the time is over."""
        begin = time.monotonic()
        for first in range(0, len(plans), PER_JOB):
            batch = plans[first : first + PER_JOB]
            for size in self._sizes:
                for plan, judgement in zip(batch, check(batch, size, self._deadline_s), strict=True):
                    self.kinds[judgement.kind] += 1
                    if judgement.is_finding:
                        self._investigate(plan, judgement)
            self.programs += len(batch)
            spent = time.monotonic() - begin
            self._say(f"{self.programs} programs in {spent:.0f} s: {self.summary()}")
            if len(self.findings) >= self._most or (seconds and spent > seconds):
                break

    def summary(self) -> str:
        """One line of counts: the judgements of each kind, and the findings."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        return f"{counts}; {len(self.findings)} findings"

    def _investigate(self, plan: FrameworkPlan, finding: Judgement) -> None:
        self._say(f"{plan.name}: {finding.kind} on {finding.size} ranks: {finding.text[:600]}")
        if len(self.findings) >= self._most:
            return
        [again] = check([plan], finding.size, self._deadline_s)
        remark = "" if again.is_finding else "only after the other programs of its job"
        if again.is_finding and again.kind != "hang":
            plan, again = shrink(plan, again, self._deadline_s, time.monotonic() + self._shrink_s)
        finding = again if again.is_finding else finding
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{plan.framework}-seed{plan.seed}-{plan.index}.txt"
        path.write_text(f"{finding.kind} on {finding.size} ranks {remark}\n{plan.text()}\n\n{finding.text}\n")
        repeat = f"--framework {plan.framework} --seed {plan.seed} --only {plan.index} --sizes {finding.size}"
        self.findings.append(f"{plan.name}: {finding.kind} on {finding.size} ranks {remark}: {path}")
        self._say(f"python -m workbench.differential {repeat}\n{plan.text()}\n{finding.text[:3000]}")


def shrink(
    plan: FrameworkPlan, finding: Judgement, deadline_s: float, until_s: float
) -> tuple[FrameworkPlan, Judgement]:
    """The smallest plan that greedy removal finds with a finding of the same kind; one job tries all removals."""
    while time.monotonic() < until_s:
        smaller = list(candidates(plan))
        judged = zip(smaller, check(smaller, finding.size, deadline_s), strict=True)
        kept = next(((p, j) for p, j in judged if j.kind == finding.kind), None)
        if kept is None:
            break
        plan, finding = kept
    return plan, finding


def candidates(plan: FrameworkPlan) -> Iterator[FrameworkPlan]:
    """Plans with one action, special term, setting or step less."""
    for i in range(len(plan.actions)):
        yield msgspec.structs.replace(plan, actions=plan.actions[:i] + plan.actions[i + 1 :])
    for name in (
        each for each in msgspec.structs.asdict(plan.terms) if getattr(plan.terms, each) != getattr(PlanTerms(), each)
    ):
        plainer = msgspec.structs.replace(plan.terms, **{name: getattr(PlanTerms(), name)})
        yield msgspec.structs.replace(plan, terms=plainer)
    for name in plan.settings:
        yield msgspec.structs.replace(plan, settings={k: v for k, v in plan.settings.items() if k != name})
    for i, action in enumerate(plan.actions):
        if action.steps > 1:
            one = msgspec.structs.replace(action, steps=action.steps - 1)
            yield msgspec.structs.replace(plan, actions=(*plan.actions[:i], one, *plan.actions[i + 1 :]))
