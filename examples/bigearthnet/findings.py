"""What the trainings show, beside what was published.

rows = summary(report)                      # mean and spread of F1 over the seeds, per row
for finding in findings(rows, report.constant_f1):
    print("yes" if finding.holds else "no", finding.claim, finding.numbers)
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, stdev
from typing import NamedTuple, final

from examples.bigearthnet.experiment import Report, Result


class Published(NamedTuple):
    """A row of the published table."""

    batch: str
    f1: float
    remark: str


PUBLISHED = {
    1: Published("512", 0.78, ""),
    16: Published("8k", 0.74, ""),
    32: Published("16k", 0.64, "diverging"),
    64: Published("32k", 0.43, "diverging"),
}
"""BigEarthNet, ResNet-50, SGD with linearly scaled rates and 5 warm-up epochs (Sedona et al. 2020), by batch / 512."""

CLOSE = 0.02
"""How near to the base batch's F1 a large batch is as good."""
CLEARLY = 0.05
"""What a loss of F1 is that nobody would accept."""
COLLAPSED = 0.15
"""How near to naming always the same labels nothing has been learned that is worth anything."""


@final
@dataclass(frozen=True)
class Line:
    """A row of the table: all seeds of one optimizer and batch."""

    results: tuple[Result, ...]

    @property
    def first(self) -> Result:
        """For what all of them have in common."""
        return self.results[0]

    @property
    def f1s(self) -> list[float]:
        """By seed."""
        return [result.outcome.f1 for result in self.results]

    @property
    def f1(self) -> float:
        """Their mean."""
        return mean(self.f1s)

    @property
    def deviation(self) -> float:
        """Their standard deviation; 0 for one seed."""
        return stdev(self.f1s) if len(self.f1s) > 1 else 0.0

    @property
    def name(self) -> str:
        """``sgd 16``."""
        return f"{self.first.row.optimizer} {self.first.row.ratio}"


@final
@dataclass(frozen=True)
class Finding:
    """Something that should come out, whether it did, and the numbers."""

    claim: str
    holds: bool
    numbers: str


def summary(report: Report) -> list[Line]:
    """The rows in their order, with all their seeds."""
    rows = list(dict.fromkeys(_key(result) for result in report.results))
    return [Line(tuple(r for r in report.results if _key(r) == key)) for key in rows]


def findings(lines: list[Line], constant_f1: float) -> list[Finding]:
    """What was published, as claims about these trainings."""
    by_name = {line.name: line for line in lines}
    base = by_name["sgd 1"]

    def loss(name: str) -> float:
        return base.f1 - by_name[name].f1

    rescue = min(("lars 32", "lamb 32"), key=loss)
    near = by_name["sgd 64"].f1 - constant_f1
    return [
        Finding("SGD at 16 x B0 is nearly as good", loss("sgd 16") <= CLOSE, f"it loses {loss('sgd 16'):.3f}"),
        Finding("SGD at 32 x B0 is clearly worse", loss("sgd 32") >= CLEARLY, f"it loses {loss('sgd 32'):.3f}"),
        Finding("SGD at 64 x B0 has collapsed", near <= COLLAPSED, f"{near:.3f} above naming always the same labels"),
        Finding(
            f"{rescue.split()[0].upper()} at 32 x B0 is as good as SGD at B0",
            loss(rescue) <= CLOSE,
            f"it loses {loss(rescue):.3f}",
        ),
    ]


def _key(result: Result) -> tuple[str, int]:
    return result.row.optimizer, result.row.ratio
