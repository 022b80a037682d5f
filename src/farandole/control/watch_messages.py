"""Messages for watching a job: between its controller and its workers, and between its controller and watchers.

A watcher (the monitor, ``farandole.monitor``) has the job's key and sends ``WatchJob``. From then on workers send their
metrics a few times a second, and the controller sends every event to the watchers as a message of its own. Without a
watcher, workers send no metrics.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.message import Message

WATCHER = b"watcher-"
"""Prefix of the identity of a watcher."""

AT_STEPS = ("stop", "pause", "resume", "checkpoint")
"""Orders of a watcher that all ranks obey after the same step."""

OF_TRIALS = ("pause-trial", "resume-trial", "stop-trial", "repeat-trial")
"""Orders for one trial of a search; "pause", "resume" and "stop" apply to the whole search."""

AT_ONCE = ("scale", "end")
"""Orders that the launcher obeys at once: change the number of workers, or end the job by SIGTERM."""


@final
class MetricPoint(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of one step of a rank, at ``time_s`` seconds since 1970; see ``events.Metric``."""

    time_s: float
    step: int
    samples: int
    values: dict[str, float]


# -- the controller to a worker, and back -----------------------------------------------------------------------------


EXPECTED_S = 0.2
"""Interval at which workers send metrics while a watcher is expected and not connected yet."""


@final
class SendMetrics(Message, frozen=True):
    """Order to a worker: send metrics to the controller every ``every_s`` seconds; 0: stop sending."""

    generation: int
    every_s: float


@final
class Metrics(Message, frozen=True):
    """A rank's metrics since its last such message; ``dropped``: points left out; ``notes`` are (time, text) pairs."""

    generation: int
    points: list[MetricPoint]
    notes: list[tuple[float, str]] = msgspec.field(default_factory=list)
    dropped: int = 0


@final
class Prepare(Message, frozen=True):
    """Wait at the end of the next step, so that all ranks obey order ``number`` after the same step."""

    generation: int
    number: int


@final
class Prepared(Message, frozen=True):
    """A rank will wait at the end of its next step; it has completed ``step`` steps so far (-1: it counts none).

    ``at_rest``: no notebook cell runs on this rank, and it makes no step until the user sends a cell.
    """

    generation: int
    number: int
    step: int
    at_rest: bool = False


@final
class ActAt(Message, frozen=True):
    """Obey order ``number``, which is ``verb``, after ``step`` completed steps; -1: drop the order and continue."""

    generation: int
    number: int
    verb: str
    step: int


@final
class Acted(Message, frozen=True):
    """A rank obeyed order ``number`` after ``step`` steps."""

    generation: int
    number: int
    step: int


@final
class CellOver(Message, frozen=True):
    """The notebook cell in which order ``number`` arrived has ended on a rank; the order, or its pause, ends, too."""

    generation: int
    number: int


# -- a watcher to the controller --------------------------------------------------------------------------------------


@final
class WatchJob(Message, frozen=True):
    """Subscription to events, and to metrics every ``every_s`` seconds; at most ``window_bytes`` without ``Seen``."""

    every_s: float
    window_bytes: int


@final
class Seen(Message, frozen=True):
    """Acknowledgement of ``nbytes`` more bytes that a watcher has processed."""

    nbytes: int


@final
class WatchOrder(Message, frozen=True):
    """Order ``number`` of a watcher; ``verb`` is in ``AT_STEPS``, ``AT_ONCE`` or ``OF_TRIALS``. See ``OrderNews``.

    ``workers`` is used by ``scale``, ``trial`` by the orders for one trial.
    """

    number: int
    verb: str
    workers: int = 0
    trial: int = -1


# -- the controller to a watcher --------------------------------------------------------------------------------------


@final
class Members(Message, frozen=True):
    """A generation is formed; ``hosts`` has the host of each rank. ``resizable``: the number of workers may change."""

    time_s: float
    generation: int
    hosts: list[str]
    resizable: bool = False


@final
class Ended(Message, frozen=True):
    """A generation has ended for the given reason."""

    time_s: float
    generation: int
    reason: str


@final
class RankMetrics(Message, frozen=True):
    """Metrics of one rank: see ``Metrics``."""

    generation: int
    rank: int
    points: list[MetricPoint]
    notes: list[tuple[float, str]] = msgspec.field(default_factory=list)
    dropped: int = 0


@final
class Printed(Message, frozen=True):
    """Whole lines, with their tags, that workers wrote to standard output (``stream`` 0) or standard error (1)."""

    time_s: float
    stream: int
    text: bytes


@final
class Announced(Message, frozen=True):
    """A line that the launcher prints for users."""

    time_s: float
    text: str


@final
class OrderNews(Message, frozen=True):
    """State of an order: ``taken``, ``acted`` (after ``step``) or ``refused``; ``text`` describes it for users."""

    number: int
    verb: str
    state: str
    text: str
    step: int = -1
    time_s: float = 0.0


@final
class TrialNews(Message, frozen=True):
    """State of a trial of a search: its row in the table of trials.

    ``values`` are the numbers in that row, ``step`` is the trial's last epoch. ``points`` are new (epoch, value) pairs
    to append to the known ones; ``metrics`` are such pairs by name.
    """

    time_s: float
    trial: int
    state: str
    params: dict[str, float | int | str | bool | None]
    values: dict[str, float]
    step: int
    workers: int
    note: str
    points: list[tuple[int, float]]
    metrics: dict[str, list[tuple[int, float]]] = msgspec.field(default_factory=dict)


@final
class Missed(Message, frozen=True):
    """Number of messages not sent to this watcher, because it had not acknowledged the earlier ones."""

    count: int


OfWorker: TypeAlias = Metrics | Prepared | Acted | CellOver
OfController: TypeAlias = SendMetrics | Prepare | ActAt
OfWatcher: TypeAlias = WatchJob | Seen | WatchOrder
News: TypeAlias = Members | Ended | RankMetrics | Printed | Announced | OrderNews | TrialNews | Missed
WatchMessage: TypeAlias = OfWorker | OfController | OfWatcher | News
