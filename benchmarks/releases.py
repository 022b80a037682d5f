"""Two versions of Farandole side by side: ``python -m benchmarks.releases REVISION [--rounds N]``.

The other version is built from its revision in an environment of its own, which has the rest from this one. A job of
either stands ready at once, and rounds go from one to the other, in turn who comes first. Each round's ratio is that of
two neighbours in time, and what is told is the median of these, with the interval in which the median of many more
would lie. Where a process has its memory makes some per cent of a large step, so the rounds are those of several jobs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import final

from benchmarks.fleet import Fleet
from benchmarks.measure import Sample

RANK = Path(__file__).with_name("releases_rank.py")
WORKS = ("tiny", "large", "cnn", "named")
SECONDS = 0.5
"""Length of one measurement."""
REFORM_S = 120.0


@final
class Version:
    """Environment in which one version is installed."""

    def __init__(self, name: str, prefix: Path) -> None:
        self.name, self._bin = name, prefix / "bin"

    def command(self, arguments: list[str]) -> list[str]:
        """Arguments of a job that runs ``releases_rank.py``."""
        launcher = [str(self._bin / "python"), "-m", "farandole", "run"]
        return [*launcher, *arguments[:-1], str(self._bin / "python"), str(RANK), arguments[-1]]

    def fleet(self) -> Fleet:
        """Two ranks that wait to be told what to measure."""
        return Fleet(self.name, 2, commands=[(self.command(["-np", "2", "serve"]), {})])

    def reform_s(self) -> float:
        """Seconds from a survivor's last step before the death of the other worker to its next one."""
        command = self.command(["-np", "2", "--min-np", "1", "--max-np", "2", "reform"])
        done = subprocess.run(command, capture_output=True, text=True, timeout=REFORM_S, check=False)
        pauses = [line.split("pause_s ")[1] for line in done.stdout.splitlines() if "pause_s " in line]
        if not pauses:
            raise RuntimeError(f"{self.name}: no pause was measured\n{done.stdout}{done.stderr}")
        return float(pauses[0])


def install(revision: str, folder: Path) -> Version:
    """Build ``revision`` into an environment below ``folder``."""
    source, prefix = folder / "source", folder / "venv"
    source.mkdir()
    archive = subprocess.run(["git", "archive", revision], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    here = Path(sysconfig.get_path("purelib"))
    there = prefix / here.relative_to(sys.prefix)
    # A path from a .pth file: the .pth files in there, which would bring this version along, are not read.
    (there / "rest.pth").write_text(f"{here}\n")
    build = ["-m", "pip", "install", "-qq", "--no-build-isolation", "--no-deps", "--target", str(there), str(source)]
    subprocess.run([sys.executable, *build], check=True)
    return Version("old", prefix)


def rounds(old: Fleet, new: Fleet, work: str, number: int) -> list[tuple[float, float]]:
    """Times of a step of ``work``, old and new, of neighbours in time."""
    times = old.call("prepare", work, SECONDS)[0]
    new.call("prepare", work, SECONDS)
    taken = []
    for _, order in zip(range(number), itertools.cycle([(old, new), (new, old)]), strict=False):
        found = {fleet.contender: max(fleet.call("time", times)) for fleet in order}
        taken.append((found["old"], found["new"]))
    return taken


def report(what: str, taken: list[tuple[float, float]], unit: str) -> None:
    """Print a line: both medians, and the median of the ratios of neighbours."""
    ratios = Sample.of(n / o for o, n in taken)
    old, new = (statistics.median(column) for column in zip(*taken, strict=True))
    medians = f"old {old:9.4g}  new {new:9.4g} {unit}"
    print(f"{what:8} {medians}   new/old {ratios.median:.3f} ± {ratios.margin:.3f}", flush=True)


def main() -> None:
    """Measure, and print as it comes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.releases", description=__doc__.partition("\n")[0])
    parser.add_argument("revision", help="of the older version, as git knows it")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each work (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=4, help="jobs of each that share these rounds (default: %(default)s)"
    )
    parser.add_argument("--only", metavar="WORK", nargs="*", default=WORKS, help="of: " + " ".join(WORKS))
    parser.add_argument("--reforms", type=int, default=10, help="deaths survived by each (default: %(default)s)")
    told = parser.parse_args()
    # What names itself to PyTorch here is the new version, also where the old one runs, which may not know of it.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    new = Version("new", Path(sys.prefix))
    with tempfile.TemporaryDirectory(prefix="farandole-old-") as name:
        old = install(told.revision, Path(name))
        taken: dict[str, list[tuple[float, float]]] = {work: [] for work in told.only}
        for _ in range(told.jobs):
            with old.fleet() as a, new.fleet() as b:
                print(f"old {a.checked[0]}\nnew {b.checked[0]}", flush=True)
                for work in told.only:
                    taken[work] += rounds(a, b, work, told.rounds // told.jobs)
                    report(work, taken[work], "us" if work == "named" else "ms")
        pauses = [(old.reform_s(), new.reform_s()) for _ in range(told.reforms)]
        if pauses:
            report("reform", pauses, "s")


if __name__ == "__main__":
    main()
