"""Trial that gets three more workers while it trains: same process, same bits, a short pause.

    python -m tests.support.search.search_resize --pause-s 0.3  # exit status 0, or what is wrong

Its weights after a fixed number of steps are compared, bit for bit, with those of a trial that has one worker.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import farandole
from tests.support.search.objectives import bits


def run(folder: Path, size: int) -> list[str]:
    """Words of the line that the trial has written: its size in the end, its process, and the digest."""
    os.environ["SEARCH_TEST_SIZE"] = str(size)
    result = farandole.search(bits, {"lr": [0.01]}, size, (1, size), size, seed=3, folder=folder)
    assert result.trials[0].phase == "complete", result
    assert all("no value" in trial.why for trial in result.trials[1:])
    [line] = (folder / "checkpoints" / "trial-0000" / "bits.txt").read_text().splitlines()
    return line.split()


def check(folder: Path, pause_s: float) -> None:
    """Compare a trial that grows with one that does not."""
    size, pid, digest = run(folder / "grows", 4)
    alone, _, same = run(folder / "alone", 1)
    pauses = [line.split() for line in (folder / "grows/checkpoints/trial-0000/pauses.txt").read_text().splitlines()]
    assert (size, alone) == ("4", "1")
    assert pauses[0][0] == "1"
    assert pauses[-1][1] == "4"
    assert {each[2] for each in pauses} == {pid}, "rank 0 is another process than at first"
    assert digest == same, "the bits differ"
    longest_s = max(float(each[3]) for each in pauses)
    print(f"{len(pauses)} changes, the longest pause {longest_s:.3f} s")
    assert longest_s <= pause_s, longest_s


def main() -> None:
    """Check in a folder that is removed then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause-s", type=float, default=0.3)
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), parser.parse_args().pause_s)


if __name__ == "__main__":
    main()
