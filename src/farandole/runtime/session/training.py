"""Training of this process, for the live view: steps, samples, and metrics about them.

    training.log(None, None, {"loss": loss})        # hvd.log
    training.waited(0.002)                          # an optimizer, in a step
    training.starved(0.001)                         # a loader, before it
    training.stepped()                              # and at its end

Without a listener a step costs a few additions, and ``hvd.log`` does not call this module.

Threads. The training thread calls everything, in compiled graphs a thread of the framework. The control thread reads
``step``, a single reference.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, final

from farandole import events

EVERY_S = 0.1
"""Interval of the automatic metrics; each is a mean over the steps in it."""


@final
class Training:
    """Training of one process; it outlives sessions, because elastic workers have several."""

    def __init__(self) -> None:
        self.step = 0
        """Number of completed steps."""
        self.samples = 0
        """Number of samples of this rank so far; 0 if the script does not count them."""
        self.checkpoint_due = False
        """True after the live view ordered a checkpoint; set after the same step on every rank."""
        self.logs = 0
        """Number of calls of ``hvd.log``, counted by the caller."""
        self.all_waited_s = 0.0
        """Total time spent waiting for other ranks."""
        self._waited_s = 0.0
        self._starved_s: float | None = None
        """Time of the current step spent waiting for input; ``None`` if no loader reports it."""
        self._since: tuple[float, int] | None = None
        self._counted_s = self._begun_s = 0.0
        """Times when samples were last counted, and when the first listener subscribed or a pause ended."""
        self._counted: tuple[float, int] | None = None
        """Time and number of samples at the last count before the last metric."""
        self._unread: set[str] = set()

    @property
    def is_heard(self) -> bool:
        """True if a listener for metrics is subscribed."""
        return bool(events.listeners or events.subscribers)

    def log(self, step: int | None, samples: int | None, values: Mapping[str, Any], rank: int) -> None:
        """Emit a ``Metric``; the ``step`` is by default the optimizer's, or the number of logs."""
        if samples is not None:
            self.samples, self._counted_s = int(samples), time.monotonic()
        numbers = {name: number for name, value in values.items() if (number := self._number(name, value)) is not None}
        at = int(step) if step is not None else self.step or self.logs
        if numbers:
            events.emit(events.Metric(time.monotonic(), rank, at, self.samples, numbers))

    def saw(self, samples: int) -> None:
        """Count samples of this rank."""
        self.samples += samples
        self._counted_s = time.monotonic()

    def waited(self, seconds: float) -> None:
        """Add time of the current step spent waiting for other ranks."""
        self._waited_s += seconds
        self.all_waited_s += seconds

    def starved(self, seconds: float) -> None:
        """Add time of the current step spent waiting for a batch."""
        self._starved_s = (self._starved_s or 0.0) + seconds

    def stepped(self, rank: int, step: int | None = None) -> None:
        """End a step of an optimizer: number ``step`` of an elastic job, or the next one of this process."""
        self.step = self.step + 1 if step is None else step
        if events.listeners or events.subscribers:  # ``is_heard`` inlined: saves a call in every step
            self._measure(rank, time.monotonic())
        else:
            self._since = None

    def rested(self) -> None:
        """Exclude the time since the last step: it was a pause."""
        self._since = None

    def _measure(self, rank: int, now: float) -> None:
        since, waited_s, starved_s = self._since, self._waited_s, self._starved_s
        if since is None or self.step <= since[1]:  # the first step with a listener, or of a new generation
            self._begin(now)
            self._begun_s, self._counted = now, None
            return
        elapsed_s = now - since[0]
        if elapsed_s < EVERY_S:
            return
        steps = self.step - since[1]
        values = {"step_s": elapsed_s / steps, "wait_s": min(waited_s, elapsed_s) / steps}
        if self._counted_s > self._begun_s and (rate := self._rate()) is not None:
            values["samples_per_s"] = rate
        if starved_s is not None:
            values["input_s"] = min(starved_s, elapsed_s) / steps
        self._begin(now)
        events.emit(events.Metric(now, rank, self.step, self.samples, values))

    def _begin(self, now: float) -> None:
        """Begin the interval of the next metric."""
        self._since, self._waited_s = (now, self.step), 0.0
        self._starved_s = None if self._starved_s is None else 0.0

    def _rate(self) -> float | None:
        """Samples per second between the last counts of two metrics: scripts count irregularly, many at once."""
        before, self._counted = self._counted, (self._counted_s, self.samples)
        if before is None or self._counted_s <= before[0] or self.samples <= before[1]:
            return None
        return (self.samples - before[1]) / (self._counted_s - before[0])

    def _number(self, name: str, value: Any) -> float | None:
        """``value`` as a number; ``None``, with one warning per name, if it is not a number."""
        try:
            item = getattr(value, "item", None)  # a tensor with gradients warns of ``float``
            return float(value if item is None else item())
        except Exception as error:  # may come from any framework
            if name not in self._unread:
                self._unread.add(name)
                events.logger.warning("hvd.log(%s=...) is left out, as it is no number: %s", name, error)
            return None


training = Training()
"""Training of this process."""
