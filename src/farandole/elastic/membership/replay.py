"""Replay the journal of an elastic job: ``python -m farandole.elastic.membership.replay FILE``.

Prints events and decisions. It decides again from the events, and fails if a decision differs from the recorded one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from farandole.elastic.membership.journal import DecisionRecord, replay
from farandole.errors import UsageError


def replay_lines(turns: Sequence[DecisionRecord]) -> Iterator[str]:
    """Lines to print, for each event and decision; seconds count from the first turn."""
    begin_s = turns[0].at_s if turns else 0.0
    for turn in turns:
        for heard in turn.heard:
            yield f"{heard.at_s - begin_s:10.3f}  {heard.event}"
        for decision in turn.decisions:
            yield f"{turn.at_s - begin_s:10.3f}    {decision.action}: {decision.reason}"


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m farandole.elastic.membership.replay FILE", file=sys.stderr)
        return 2
    try:
        with Path(arguments[0]).open(encoding="utf-8") as lines:
            turns = replay(lines)
    except (OSError, UsageError) as error:
        print(f"farandole: {error}", file=sys.stderr)
        return 1
    print("\n".join(replay_lines(turns)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
