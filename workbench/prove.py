"""``python -m workbench.prove TEST ...``: run tests 50 times while every core is loaded; status 1 at the first failure.

A test enters ``tests/jobs`` after it has passed this. ``TEST`` is a file, a folder or a node id, as for pytest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from workbench.stress.load import burners

TIMES = 50


def prove(tests: Sequence[str], times: int) -> bool:
    """True if the tests have passed so many times in a row."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    for number in range(1, times + 1):
        begin_s = time.monotonic()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        print(f"{number:3} of {times}: status {done.returncode}, {time.monotonic() - begin_s:.1f} s", flush=True)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n")
            return False
    return True


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m workbench.prove", description=__doc__)
    parser.add_argument("tests", nargs="+", metavar="TEST")
    parser.add_argument("--times", type=int, default=TIMES, help=f"how often (default: {TIMES})")
    asked = parser.parse_args()
    with burners():
        sys.exit(not prove(asked.tests, asked.times))


if __name__ == "__main__":
    main()
