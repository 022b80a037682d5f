"""A training that grows by advice, is preempted, and shrinks, over several jobs of a real Slurm; with a picture.

    python -m workbench.leases.story --save docs/images/story.png      # six minutes; needs root, as all clusters here

``examples/leases_digits.py`` starts on one node with two workers and a small batch. No user orders a size: it grows by
the lower bound of its noise scale, twice; then an urgent job preempts a lease, which leaves; and when the accuracy is
good enough, a rule reduces it to two workers. The samples that it trained on are compared with its data.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from workbench.cluster import SlurmCluster
from workbench.leases.story_picture import draw
from workbench.leases.story_run import check, play


def main() -> int:
    """Play the story, check it, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", metavar="PICTURE", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, SlurmCluster(4) as slurm:
        folder = Path(name)
        story = play(slurm, folder)
        wrong = list(check(story, folder))
    draw(story, options.save)
    sizes = ", ".join(map(str, story.sizes()))
    print(f"{len(story.steps)} steps on {sizes} workers; {len(story.records)} decisions, {len(wrong)} mistakes")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
