"""The command that makes the table and the picture of an application, and compares both with committed results.

    application = Application("jets", figures=FIGURES, findings=findings, measure=measure, draw=draw)
    if __name__ == "__main__":
        application.main()

    python -m examples.jets --reproduce             # three seeds, the table on the terminal, files in out/
    python -m examples.jets --reproduce --check     # one seed beside the committed results: exit status 1 if it differs
    python -m examples.jets --reproduce --write     # three seeds, and replace examples/jets/results/
    python -m examples.jets --reproduce --quick     # tiny sizes: to see that everything works

``measure(seed, quick)`` trains and returns a `Measured`. What a figure is within is the Student interval of the mean
over the seeds, at 95 %; what a new seed is compared with is the interval of one more value at 99 %, widened by the
tolerance of the figure.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

import farandole

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (0, 1, 2)
MARK = re.compile(r"(<!-- table -->\n).*?(<!-- end -->)", re.DOTALL)


@final
@dataclass(frozen=True)
class Figure:
    """One row of the table: ``Figure("mae_sigma8", "mean absolute error of σ_8", tolerance=0.01)``.

    ``kind`` is "baseline", "oracle" or "own"; ``tolerance`` what a figure may differ by on another machine.
    """

    name: str
    meaning: str
    kind: str = "own"
    tolerance: float = 0.02


@final
@dataclass(frozen=True)
class Finding:
    """A sentence of the results, the numbers behind it, and whether it holds."""

    claim: str
    numbers: str
    holds: bool


@final
@dataclass(frozen=True)
class Measured:
    """What one seed gave: figures by name, and whatever the picture needs (JSON, kept small)."""

    figures: Mapping[str, float]
    drawn: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


Results = Mapping[int, Measured]


@final
@dataclass(frozen=True)
class Application:
    """How an application is reproduced."""

    name: str
    figures: Sequence[Figure]
    measure: Callable[[int, bool], Measured]
    findings: Callable[[Results], Sequence[Finding]]
    draw: Callable[[Results, Path], None]

    @property
    def folder(self) -> Path:
        """Where the committed results are."""
        return ROOT / "examples" / self.name / "results"

    def main(self) -> None:
        """Run the command line."""
        options = self._arguments()
        if not options.reproduce:
            raise SystemExit(f"nothing asked for: python -m examples.{self.name} --reproduce")
        if options.check:
            raise SystemExit(self._check(options.seeds[0] if options.seeds else SEEDS[0]))
        results = {}
        for seed in options.seeds or ((SEEDS[0],) if options.quick else SEEDS):
            results[seed] = self._timed(seed, options.quick)
        self.show(results)
        self._save(results, self.folder if options.write else options.out / self.name)

    def show(self, results: Results) -> None:
        """Print the table and the findings."""
        console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
        table = Table(
            "",
            "figure",
            "mean ± 95 %",
            "of the seeds",
            title=f"{self.name}, {len(results)} seed{'s' * (len(results) > 1)}",
        )
        for figure, cells in self.rows(results):
            table.add_row(figure.kind, *cells)
        console.print(table)
        for each in self.findings(results):
            console.print(f"{'yes' if each.holds else 'NO '}  {each.claim}: {each.numbers}")
        console.print(f"it took {sum(each.seconds for each in results.values()) / 60:.1f} minutes")

    def rows(self, results: Results) -> list[tuple[Figure, tuple[str, str, str]]]:
        """Cells for each figure."""
        rows = []
        for figure in self.figures:
            values = [each.figures[figure.name] for each in results.values()]
            half = interval(values)
            said = f"{statistics.mean(values):.3g}" + (f" ± {half:.2g}" if len(values) > 1 else "")
            rows.append((figure, (figure.meaning, said, " ".join(f"{value:.3g}" for value in values))))
        return rows

    def committed(self) -> Results:
        """The results that are in the repository."""
        said = json.loads((self.folder / "results.json").read_text())
        return {int(seed): Measured(**each) for seed, each in said["seeds"].items()}

    def _timed(self, seed: int, quick: bool) -> Measured:
        begun = time.monotonic()
        measured = self.measure(seed, quick)
        return Measured(measured.figures, measured.drawn, time.monotonic() - begun)

    def _check(self, seed: int) -> int:
        """Compare one seed with the committed results; the exit status."""
        before, now = self.committed(), self._timed(seed, quick=False)
        self.show({seed: now})
        far = differences(self.figures, before, now)
        for each in far:
            print(f"differs from the committed results: {each}")
        return 1 if far else 0

    def _save(self, results: Results, folder: Path) -> None:
        """Write results.json, table.md and picture.png."""
        folder.mkdir(parents=True, exist_ok=True)
        made_by = {
            "command": " ".join(["python -m", f"examples.{self.name}", *sys.argv[1:]]),
            "farandole": farandole.__version__,
            "machine": platform.machine(),
        }
        (folder / "results.json").write_text(results_json(results, made_by))
        (folder / "table.md").write_text(self.markdown(results) + "\n")
        self.draw(results, folder / "picture.png")
        if folder == self.folder:
            self._rewrite_readme(results)
        print("written: " + "   ".join(str(folder / name) for name in ("results.json", "table.md", "picture.png")))

    def _rewrite_readme(self, results: Results) -> None:
        """Let README.md show the table, where it has a place for it."""
        page = self.folder.parent / "README.md"
        told = MARK.sub(lambda found: f"{found[1]}{self.markdown(results)}\n{found[2]}", page.read_text())
        page.write_text(told)

    def markdown(self, results: Results) -> str:
        """The table and the findings for a page."""
        lines = ["| | figure | mean ± 95 % | of the seeds |", "| --- | --- | --- | --- |"]
        lines += [f"| {figure.kind} | {' | '.join(cells)} |" for figure, cells in self.rows(results)]
        lines.append("")
        lines += [f"- {'yes' if f.holds else 'NO'}: {f.claim}: {f.numbers}" for f in self.findings(results)]
        return "\n".join(lines)

    def _arguments(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"python -m examples.{self.name}",
            description=f"Make the table and the picture of {self.name}: train, compare with baselines, draw.",
        )
        parser.add_argument("--reproduce", action="store_true", help="train with three seeds, print, write to --out")
        parser.add_argument("--check", action="store_true", help="one seed, compared with the committed results")
        parser.add_argument("--write", action="store_true", help="replace the committed results")
        parser.add_argument("--quick", action="store_true", help="tiny sizes: what comes out means nothing")
        parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2")
        parser.add_argument("--out", type=Path, default=Path("out"), help="folder (default: %(default)s)")
        return parser.parse_args()


def results_json(results: Results, made_by: Mapping[str, str]) -> str:
    """Results as JSON, a line for each seed, numbers with five digits."""
    seeds = ",\n".join(f'"{seed}": {json.dumps(_rounded(asdict(each)))}' for seed, each in results.items())
    return f'{{"made_by": {json.dumps(made_by)},\n"seeds": {{\n{seeds}\n}}}}\n'


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def interval(values: Sequence[float], level: float = 0.95) -> float:
    """Half of the Student interval of the mean; 0 for one value."""
    if len(values) < 2:
        return 0.0
    quantile = float(student.ppf(0.5 + level / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def differences(figures: Sequence[Figure], before: Results, now: Measured) -> list[str]:
    """Figures that lie outside of where one more seed is to be expected at 99 %."""
    far = []
    for figure in figures:
        values = [each.figures[figure.name] for each in before.values()]
        half = interval(values, 0.99) * math.sqrt(1 + len(values)) + figure.tolerance
        value, mean = now.figures[figure.name], statistics.mean(values)
        if not abs(value - mean) <= half:
            far.append(f"{figure.meaning}: {value:.4g}, expected {mean:.4g} ± {half:.2g}")
    return far
