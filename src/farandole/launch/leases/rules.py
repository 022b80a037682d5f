"""Rules of a user: an effect on the run when a metric of the training first satisfies a condition.

>>> rule = LeaseRule.parse("val_acc>=0.9", "np=2,nice=1000")
>>> rule.holds({"val_acc": 0.93}), rule.holds({"val_acc": 0.5}), rule.holds({})
(True, False, False)
>>> print(rule)
--when 'val_acc>=0.9' --then 'np=2,nice=1000'
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Final, final

import msgspec

from farandole.errors import SettingsError

COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
SHAPE = re.compile(r"\s*([A-Za-z_][\w./-]*)\s*(>=|<=|==|>|<)\s*(\S+)\s*")
EXAMPLE = "--when 'val_acc>=0.9' --then 'np=2,nice=1000'"
NICEST = 2_147_483_645
"""Largest niceness that Slurm accepts."""


@final
class LeaseRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule as in a policy file or on the command line; ``condition`` and ``effect`` parse the texts.

    The rule takes effect when its condition first holds, and stays in force even if the metric falls back.
    """

    when: str
    then: str

    @classmethod
    def parse(cls, when: str, then: str) -> LeaseRule:
        """Make a rule from two texts; raises ``SettingsError`` for a text that cannot be parsed."""
        rule = cls(when, then)
        rule.condition()
        rule.effect()
        return rule

    def condition(self) -> tuple[str, str, float]:
        """Name of the metric, comparison and number."""
        found = SHAPE.fullmatch(self.when)
        if found is None:
            wanted = f"a metric, one of {' '.join(COMPARISONS)}, and a number"
            raise SettingsError(f"--when {self.when!r} is no condition: write {wanted}, as in {EXAMPLE}")
        return found[1], found[2], _number("--when", self.when, found[3])

    def effect(self) -> tuple[int | None, int | None]:
        """Largest number of workers, and niceness of waiting leases; ``None`` for an effect that is not given."""
        said: dict[str, int] = {}
        for part in self.then.split(","):
            name, _, value = (text.strip() for text in part.partition("="))
            if name not in ("np", "nice") or not value.isdigit() or name in said:
                raise SettingsError(f"--then {self.then!r} is not understood at {part!r}: write np=N, nice=N or both, "
                                    f"as in {EXAMPLE}")  # fmt: skip
            said[name] = int(value)
        if said.get("np", 1) < 1:
            raise SettingsError(f"--then {self.then!r}: a training has at least 1 worker; write np=1")
        if said.get("nice", 0) > NICEST:
            raise SettingsError(f"--then {self.then!r}: Slurm takes a niceness of {NICEST} at most")
        return said.get("np"), said.get("nice")

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """True if the metric exists and satisfies the condition."""
        name, comparison, number = self.condition()
        return name in metrics and COMPARISONS[comparison](metrics[name], number)

    def __str__(self) -> str:
        return f"--when '{self.when}' --then '{self.then}'"


def _number(flag: str, text: str, written: str) -> float:
    try:
        number = float(written)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise SettingsError(f"{flag} {text!r}: {written!r} is no number; write it as in {EXAMPLE}")
    return number
