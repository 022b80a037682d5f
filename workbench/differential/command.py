"""Command line of the differential fuzzer.

python -m workbench.differential --programs 10000 --seed 1
python -m workbench.differential --seed 1 --only 17
python -m workbench.differential --framework jax --programs 2000 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import final

from workbench.differential.check import DEADLINE_S, Checker
from workbench.differential.frameworks.fuzzing import FrameworkFuzzer
from workbench.differential.frameworks.generation import generate as generate_plan
from workbench.differential.generator import generate
from workbench.differential.program import Program
from workbench.differential.shrink import shrink
from workbench.differential.verdict import Verdict

REPORT_EVERY_S = 20.0


@final
class Fuzzer:
    """Runs programs and keeps count; findings are confirmed, shrunk and written to ``folder``."""

    def __init__(self, checker: Checker, folder: Path, shrink_s: float, most: int) -> None:
        self.kinds: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.findings: list[str] = []
        self.programs = 0
        self._checker, self._folder, self._shrink_s, self._most = checker, folder, shrink_s, most

    def run(self, programs: Iterable[Program], seconds: float) -> None:
        """Check ``programs`` until there are too many findings or the time is over."""
        begin = told = time.monotonic()
        for program in programs:
            verdicts = self._checker.check(program)
            self.programs += 1
            self.kinds.update(verdict.kind for verdict in verdicts)
            for verdict in verdicts:
                if verdict.kind == "refused":
                    self.refused.update({f for f in program.features if f in _refusable(program)})
            finding = next((verdict for verdict in verdicts if verdict.is_finding), None)
            if finding is not None:
                self._investigate(program, finding)
            now = time.monotonic()
            if now - told > REPORT_EVERY_S:
                told = now
                say(f"{self.programs} programs in {now - begin:.0f} s: {self.summary()}")
            if len(self.findings) >= self._most or (seconds and now - begin > seconds):
                break

    def summary(self) -> str:
        """One line of counts: the verdicts of each kind, and the findings."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        return f"{counts}; {len(self.findings)} findings"

    def _investigate(self, program: Program, finding: Verdict) -> None:
        say(f"{program.name}: {finding.kind} on {finding.size} ranks: {finding.text[:300]}")
        again = self._checker.confirm(program, finding)
        if again is None:
            self._write(program, finding, "not on a job that had done nothing else")
            return
        end = time.monotonic() + self._shrink_s
        small, verdict = shrink(program, again, self._checker.first_finding, end)
        self._write(small, verdict, "")

    def _write(self, program: Program, finding: Verdict, remark: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"seed{program.seed}-{program.index}.py"
        says = [f"{finding.kind} on {finding.size} ranks {remark}".rstrip(), *finding.text.splitlines()[:1]]
        path.write_text(program.script(says, finding.size))
        path.with_suffix(".txt").write_text(finding.text + "\n")  # tracebacks, or the stacks of all ranks
        self.findings.append(f"{program.name}: {finding.kind} on {finding.size} ranks {remark}: {path}")
        say(f"{self.findings[-1]}\n{program.function()}\n{finding.text[:1500]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate, run, judge, shrink and report; 1 if there was a finding."""
    args = parser().parse_args(arguments)
    if args.framework != "torch":
        return _other_framework(args)
    without = sorted(_names(args.without))
    having = _names(args.having)
    programs = (
        p for p in (generate(args.seed, i, without) for i in _indices(args)) if not having or having & {*p.features}
    )
    if args.show:
        for program in programs:
            say(program.script())
        return 0
    sizes = [int(size) for size in args.sizes.split(",")]
    with Checker(sizes, args.deadline) as checker:
        fuzzer = Fuzzer(checker, Path(args.scripts), args.shrink_seconds, args.findings)
        fuzzer.run(programs, args.seconds)
    say(f"{fuzzer.programs} programs on {args.sizes} ranks, seed {args.seed}: {fuzzer.summary()}")
    if fuzzer.refused:
        say(f"refused: {', '.join(f'{name} {count}' for name, count in fuzzer.refused.most_common())}")
    for line in fuzzer.findings:
        say(line)
    return 1 if fuzzer.findings else 0


def _other_framework(args: argparse.Namespace) -> int:
    """``main`` for the frameworks whose programs are plans."""
    having, without = _names(args.having), _names(args.without)
    plans = [generate_plan(args.framework, args.seed, i) for i in _indices(args)]
    plans = [p for p in plans if not without & p.features and (not having or having & p.features)]
    if args.show:
        for plan in plans:
            say(plan.text())
        return 0
    sizes = [int(size) for size in args.sizes.split(",")]
    fuzzer = FrameworkFuzzer(sizes, Path(args.scripts), args.shrink_seconds, args.findings, args.deadline, say)
    fuzzer.run(plans, args.seconds)
    say(f"{fuzzer.programs} programs on {args.sizes} ranks, seed {args.seed}: {fuzzer.summary()}")
    for line in fuzzer.findings:
        say(line)
    return 1 if fuzzer.findings else 0


def _indices(args: argparse.Namespace) -> Iterable[int]:
    return [int(i) for i in args.only.split(",")] if args.only else range(args.first, args.first + args.programs)


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m workbench.differential", description=__doc__)
    made.add_argument(
        "--framework",
        choices=("torch", "jax", "keras"),
        default="torch",
        help="whose programs (torch); of Keras, on the backend KERAS_BACKEND",
    )
    made.add_argument("--programs", type=int, default=300, help="how many programs (300)")
    made.add_argument("--first", type=int, default=0, help="index of the first (0)")
    made.add_argument("--seed", type=int, default=1, help="what they follow from (1)")
    made.add_argument("--only", default="", help="indices, with commas between them, instead")
    made.add_argument("--seconds", type=float, default=0.0, help="begin no program after that time; 0: no limit")
    made.add_argument("--sizes", default="1,2,3", help="numbers of ranks (1,2,3)")
    made.add_argument("--without", default="", help="features that no program may have, with commas between them")
    made.add_argument("--having", default="", help="run only programs that have one of these features")
    made.add_argument("--findings", type=int, default=20, help="stop after so many (20)")
    made.add_argument(
        "--deadline", type=float, default=DEADLINE_S, help=f"seconds until a program hangs ({DEADLINE_S:g})"
    )
    made.add_argument("--shrink-seconds", type=float, default=120.0, help="seconds for shrinking each (120)")
    made.add_argument("--scripts", default="out/differential", help="folder for the scripts of findings")
    made.add_argument("--show", action="store_true", help="print the programs instead")
    return made


def say(text: str) -> None:
    """Print a line and flush it: a run takes minutes, and is watched through a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _refusable(program: Program) -> set[str]:
    return {step.feature for step in program.steps if step.may_refuse}
