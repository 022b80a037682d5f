"""``python -m workbench.planted [ROOM ...]``: plant a defect in each of ten rooms; status 1 if the tests stay green.

It changes a line of this checkout, runs tests of the gate, or of the slice that the line touches, until one fails, and
restores the line. A row whose line no longer exists is an error: it has to be rewritten.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, final

LONGEST_S = 900.0
PASSED, FAILED = 0, (1, 2)
"""Exit status of pytest; 2 if ``-x`` has ended pytest-xdist."""
ROOT = Path(__file__).resolve().parent.parent


@final
class PlantedDefect(NamedTuple):
    """A line of a file, its replacement, and the tests that must find it, the quickest first."""

    path: str
    line: str
    defect: str
    tests: Sequence[str]


DEFECTS = {
    "negotiation": PlantedDefect(
        "src/farandole/runtime/coordination/negotiation.py",
        "        if not proposal.missing:\n            self._make_ready(proposal)",
        "        if len(proposal.missing) <= 1:\n            self._make_ready(proposal)",
        ["tests/unit/runtime"],
    ),
    "membership": PlantedDefect(
        "src/farandole/elastic/membership/membership.py",
        "self._policy.max_np and staying >= self._policy.max_np)",
        "self._policy.max_np and staying > self._policy.max_np)",
        ["tests/unit/elastic"],
    ),
    "vote": PlantedDefect(
        "src/farandole/elastic/membership/vote.py",
        "    step = max(claim.step for claim in claims)",
        "    step = min(claim.step for claim in claims)",
        ["tests/unit/elastic"],
    ),
    "shm kernel": PlantedDefect(
        "native/arithmetic.hpp",
        "    const std::uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);",
        "    const std::uint32_t rounded = bits + 0x8000u;",
        ["tests/unit/native", "tests/jobs/engines"],
    ),
    "exchange": PlantedDefect(
        "src/farandole/gradients/exchange.py",
        "        if not all(bucketed):",
        "        if not any(bucketed):",
        ["tests/frameworks/torch"],
    ),
    "search allotment": PlantedDefect(
        "src/farandole/search/allot.py",
        '    return max(0, min(waiting, spare // least)), ""',
        '    return max(0, min(waiting, spare // least + 1)), ""',
        ["tests/unit/search"],
    ),
    "lease policy": PlantedDefect(
        "src/farandole/launch/leases/shrink.py",
        "    if turn.closes_s - turn.margin_s <= turn.now_s:",
        "    if turn.closes_s <= turn.now_s:",
        ["tests/unit/launch/leases"],
    ),
    "Keras optimizer": PlantedDefect(
        "src/farandole/keras/optimizer.py",
        "    return 1.0 if averages else float(passes)",
        "    return 1.0",
        ["tests/frameworks/keras"],
    ),
    "live page": PlantedDefect(
        "src/farandole/monitor/access.py",
        "        return Role.CONTROL if may_control else Role.LOOK if may_look else None",
        "        return Role.CONTROL if may_control or may_look else None",
        ["tests/jobs/monitor", "tests/nightly/page"],
    ),
    "checkpoint": PlantedDefect(
        "src/farandole/checkpoint/folder.py",
        "    if hashlib.blake2b(body, digest_size=16).hexdigest().encode() != head:",
        "    if len(head) != 32:",
        ["tests/frameworks/checkpoint"],
    ),
}


@contextlib.contextmanager
def planted(defect: PlantedDefect) -> Iterator[None]:
    """Keep a defect in the checkout during the block, compiled if it is in the native core."""
    path = ROOT / defect.path
    text = path.read_text()
    if text.count(defect.line) != 1:
        raise SystemExit(f"{defect.path} has this {text.count(defect.line)} times: {defect.line}")
    path.write_text(text.replace(defect.line, defect.defect))
    try:
        _compile(defect)
        yield
    finally:
        path.write_text(text)
        _compile(defect)


def _compile(defect: PlantedDefect) -> None:
    if defect.path.startswith("native/"):
        subprocess.run(["make", "native"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def found_by(defect: PlantedDefect) -> str:
    """The folder whose tests fail with the defect; "" if none do."""
    for folder in defect.tests:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", folder]
        code = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=LONGEST_S
        ).returncode
        if code not in (PASSED, *FAILED):
            raise SystemExit(f"{' '.join(command)} exited with {code}")
        if code != PASSED:
            return folder
    return ""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m workbench.planted", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(DEFECTS)} (default: all)")
    rooms = parser.parse_args().rooms or list(DEFECTS)
    if unknown := set(rooms) - DEFECTS.keys():
        parser.error(f"there is no defect of {', '.join(sorted(unknown))}")
    missed = 0
    for room in rooms:
        begin_s = time.monotonic()
        with planted(DEFECTS[room]):
            folder = found_by(DEFECTS[room])
        missed += not folder
        what = f"red by {folder}" if folder else "NOT FOUND"
        print(f"{room:16} {what:30} {time.monotonic() - begin_s:5.0f} s", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
