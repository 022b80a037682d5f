"""Messages of watching a job: between its controller and its workers, and between it and those who watch.

A watcher (the monitor, ``farandole.monitor``) has the job's key and says ``WatchJob``. From then on workers send their
metrics, a few times a second, and the controller passes on what it learns, each as a message of its own. Where nobody
watches, nobody sends.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.message import Message

WATCHER = b"watcher-"
"""Prefix of the identity of everybody who watches a job."""

AT_STEPS = ("stop", "pause", "resume", "checkpoint")
"""Orders of a watcher that all ranks obey after the same step."""

OF_TRIALS = ("pause-trial", "resume-trial", "stop-trial", "repeat-trial")
"""Orders for one trial of a search, which obeys "pause", "resume" and "stop" as a whole."""

AT_ONCE = ("scale", "end")
"""Orders that whoever runs the job obeys: another number of workers, or its end by SIGTERM."""


@final
class MetricPoint(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of one step of a rank, at ``time_s`` seconds since 1970; see ``events.Metric``."""

    time_s: float
    step: int
    samples: int
    values: dict[str, float]


# -- the controller to a worker, and back -----------------------------------------------------------------------------


EXPECTED_S = 0.2
"""How often workers send metrics for a watcher that is about to come."""


@final
class SendMetrics(Message, frozen=True):
    """Send me your metrics every ``every_s`` seconds, as long as there are any; 0: no more."""

    generation: int
    every_s: float


@final
class Metrics(Message, frozen=True):
    """My metrics since the last such message; ``dropped`` were too many, and ``notes`` are texts with their times."""

    generation: int
    points: list[MetricPoint]
    notes: list[tuple[float, str]] = msgspec.field(default_factory=list)
    dropped: int = 0


@final
class Prepare(Message, frozen=True):
    """Wait at the end of your next step: order ``number`` is to be obeyed after the same step everywhere."""

    generation: int
    number: int


@final
class Prepared(Message, frozen=True):
    """I shall wait at the end of my next step; so far I have ended ``step`` of them, -1 if I never count any.

    With ``at_rest`` no cell of a notebook runs here: I take no step until somebody sends one.
    """

    generation: int
    number: int
    step: int
    at_rest: bool = False


@final
class ActAt(Message, frozen=True):
    """Obey order ``number``, which is ``verb``, when you have ended ``step`` steps; -1: forget it, and go on."""

    generation: int
    number: int
    verb: str
    step: int


@final
class Acted(Message, frozen=True):
    """I have obeyed order ``number``, after so many steps."""

    generation: int
    number: int
    step: int


@final
class CellOver(Message, frozen=True):
    """The cell has ended here in which order ``number`` came: I forget it, or have ended the pause that it was."""

    generation: int
    number: int


# -- a watcher to the controller --------------------------------------------------------------------------------------


@final
class WatchJob(Message, frozen=True):
    """Tell me what happens, and of numbers every ``every_s`` seconds; at most ``window_bytes`` that I have not seen."""

    every_s: float
    window_bytes: int


@final
class Seen(Message, frozen=True):
    """I have seen so many bytes more of what you told me."""

    nbytes: int


@final
class WatchOrder(Message, frozen=True):
    """Order ``number`` of mine, of ``AT_STEPS``, ``AT_ONCE`` or ``OF_TRIALS``; see ``OrderNews``.

    ``workers`` is for ``scale``, and ``trial`` for those of trials.
    """

    number: int
    verb: str
    workers: int = 0
    trial: int = -1


# -- the controller to a watcher --------------------------------------------------------------------------------------


@final
class Members(Message, frozen=True):
    """A generation is formed, of ranks on these hosts; ``resizable`` if the job may have another number of workers."""

    time_s: float
    generation: int
    hosts: list[str]
    resizable: bool = False


@final
class Ended(Message, frozen=True):
    """A generation has ended, for this reason."""

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
    """Whole lines that workers have written to standard output (0) or error (1), each with its tag."""

    time_s: float
    stream: int
    text: bytes


@final
class Announced(Message, frozen=True):
    """A line that the launcher says to people."""

    time_s: float
    text: str


@final
class OrderNews(Message, frozen=True):
    """State of an order: it is ``taken``, ``acted`` (after ``step``) or ``refused``; ``text`` says it to people."""

    number: int
    verb: str
    state: str
    text: str
    step: int = -1
    time_s: float = 0.0


@final
class TrialNews(Message, frozen=True):
    """State of a trial of a search: its row in the table of trials.

    ``values`` are those of the table, ``step`` is its last epoch, and ``points`` are values after epochs, which stand
    beside those that you know; so are those of ``metrics``, by name.
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
    """So many messages were not sent to you, as you had not seen the ones before."""

    count: int


OfWorker: TypeAlias = Metrics | Prepared | Acted | CellOver
OfController: TypeAlias = SendMetrics | Prepare | ActAt
OfWatcher: TypeAlias = WatchJob | Seen | WatchOrder
News: TypeAlias = Members | Ended | RankMetrics | Printed | Announced | OrderNews | TrialNews | Missed
WatchMessage: TypeAlias = OfWorker | OfController | OfWatcher | News
