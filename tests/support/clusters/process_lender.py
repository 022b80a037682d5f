"""Cluster of plain processes: a ``SlotProvider`` whose tasks are children of this process; no scheduler is needed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import final

from farandole.launch.clusters.slot import DEVICES, Ticket, hold
from farandole.launch.clusters.slot_provider import SlotProvider, last_line


@final
class ProcessLender(SlotProvider):
    """Slots on these ``nodes``, with one of ``devices`` each; those whose node is "" never come."""

    name = "processes"

    def __init__(self, nodes: Sequence[str], devices: Sequence[str] = (), ticket: Ticket | None = None) -> None:
        self._nodes, self._devices, self._ticket = nodes, devices or [""] * len(nodes), ticket
        self._words: dict[int, str] = {}
        self.tasks: dict[int, subprocess.Popen[bytes]] = {}
        self.told: Collection[int] | None = None

    def lend(self, slots: range, ticket: Ticket, *, together: bool) -> None:
        """See ``SlotProvider``. Slots after the last of the nodes begin again with the first."""
        for slot in slots:
            index = slot % len(self._nodes)
            if self._nodes[index]:
                task = self.tasks[slot] = subprocess.Popen(
                    [sys.executable, "-c", "from tests.support.clusters.process_lender import main; main()"],
                    stdin=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**os.environ, DEVICES: self._devices[index]},
                )
                assert task.stdin is not None
                with task.stdin:
                    task.stdin.write(pickle.dumps((self._ticket or ticket, slot, self._nodes[index])))

    def failures(self) -> Mapping[int, str]:
        """See ``SlotProvider``."""
        for slot, task in self.tasks.items():
            if task.poll() and slot not in self._words:
                assert task.stderr is not None
                self._words[slot] = last_line(task.stderr.read().decode() or f"it was ended by {-task.returncode}")
        return self._words

    def shortage(self) -> str:
        """See ``SlotProvider``."""
        return f"there are {len(self.tasks)}"

    def close(self, told: Collection[int], until_s: float) -> None:
        """See ``SlotProvider``."""
        self.told = told
        for slot, task in self.tasks.items():
            try:
                task.wait(max(0.0, until_s - time.monotonic()) if slot in told else 0.0)
            except subprocess.TimeoutExpired:
                task.kill()
                task.wait()
            assert task.stderr is not None
            task.stderr.close()


def main() -> None:
    """Run one task."""
    hold(*pickle.load(sys.stdin.buffer))
