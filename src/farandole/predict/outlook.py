"""Outlook on more ranks: steps, efficiency, training and node-hours, what-ifs, advice, and caveats.

found = outlook(model, Question(per_host=4, samples=1.2e6, epochs=epochs))
found.rows[-1].step.middle, found.advice, found.caveats
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

import numpy as np

from farandole.errors import UsageError
from farandole.predict.costs import HOUSE_RADIX, NVLINK, Fabric, exposed, hierarchical, network
from farandole.predict.model import COMMUNICATION, INPUT, Floats, Model, Quantiles, quantiles
from farandole.predict.training import Epochs

BACKWARD = 2 / 3
"""Share of compute that a backward pass takes, behind which communication can hide."""
BUCKETS = 8
"""Assumed number of gradient buckets that overlap."""
WORTH, KEPT = 0.1, 0.8
"""Share of the time that doubling the ranks must save; efficiency that advice requires if epochs are unknown."""
WIDEST = 2.0
"""Factor between the bounds of an interval above which it says nothing."""
FARTHEST = 8
"""Multiple of the most measured ranks up to which the method was checked on published tables."""
WHAT_IFS = "network=NAME, batch=N, overlap=on, overlap=off, input=none, control=tree"


@final
@dataclass(frozen=True)
class Question:
    """Subject of an outlook. ``nbytes`` are gradients of a step, ``fabric`` and ``inside`` the measured networks.

    ``hidden_s``: measured communication of a step that was hidden. ``changes``: what-ifs, by their names.
    """

    ranks: Sequence[int] = ()
    per_host: int = 1
    samples: float = 0.0
    epochs: Epochs | None = None
    nbytes: float = 0.0
    fabric: Fabric | None = None
    inside: Fabric = NVLINK
    hidden_s: float | None = None
    steps: float = 1.0
    """Number of steps that measured seconds belong to."""
    changes: dict[str, str] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Expectation:
    """Expectation for a number of ranks: seconds of a step, its parts (medians), and of the whole training."""

    ranks: int
    hosts: int
    step: Quantiles
    efficiency: Quantiles
    parts: dict[str, float]
    batch: float
    """Samples in a step of all ranks; 0 if unknown."""
    epochs: Quantiles | None
    training: Quantiles | None

    @property
    def node_hours(self) -> float:
        """Hosts times hours; NaN if the training is unknown."""
        return self.hosts * self.training.middle / 3600 if self.training else math.nan

    @property
    def is_known(self) -> bool:
        """False if the interval is too wide."""
        return self.step.high <= WIDEST * self.step.low


@final
@dataclass(frozen=True)
class Outlook:
    """Rows by ranks, one sentence of advice, and reasons for doubt."""

    rows: tuple[Expectation, ...]
    advice: str
    caveats: tuple[str, ...]


def known(question: Question) -> dict[str, float]:
    """Most seconds that parts of communication can take by formula, for ``fit``; empty if bytes are unknown."""
    if not (question.nbytes and question.fabric):
        return {}
    n, net, times = question.nbytes, question.fabric, question.steps
    found = {"between": 2 * n * net.beta_s * times, "hops": 2 * net.alpha_s * times}
    return found | ({"inside": 2 * n * question.inside.beta_s * times} if question.per_host > 1 else {})


def outlook(model: Model, question: Question) -> Outlook:
    """Expectations for each of ``question.ranks``; raises ``UsageError`` for a what-if that the data cannot answer."""
    require_answerable(model, question)
    first = model.steps[0]
    base = quantiles(changed(model, question, first.ranks, first.hosts)).middle
    rows = tuple(_row(model, question, p, base) for p in question.ranks)
    return Outlook(rows, advice(rows), tuple(caveats(model, question, rows)))


def load_of(model: Model, question: Question) -> float:
    """Batch of a rank, relative to the measured batch."""
    return float(question.changes["batch"]) / model.batch if "batch" in question.changes else 1.0


def _row(model: Model, question: Question, ranks: int, base: float) -> Expectation:
    hosts = max(1, math.ceil(ranks / question.per_host))
    draws = changed(model, question, ranks, hosts)
    parts = {name: float(np.median(each)) for name, each in _parts(model, question, ranks, hosts).items()}
    epochs = training = None
    load = load_of(model, question)
    batch = ranks * model.batch * load
    if question.epochs and question.samples and batch:
        needed = question.epochs.at(batch)
        epochs = quantiles(needed)
        training = quantiles(needed * question.samples / batch * draws / question.steps)
    return Expectation(ranks, hosts, quantiles(draws), quantiles(base / draws), parts, batch, epochs, training)


# -- what-ifs ---------------------------------------------------------------------------------------------------------


def require_answerable(model: Model, question: Question) -> None:
    """Raise ``UsageError`` for a what-if that needs missing measurements, with the option to give."""
    for name, value in question.changes.items():
        lack = ""
        if f"{name}={value}" not in WHAT_IFS and name not in ("network", "batch"):
            lack = f"what-ifs are {WHAT_IFS}"
        elif name == "network" and not (question.nbytes and question.fabric):
            lack = "how much of the exchange is hidden is not known: give --bytes and --network as measured"
        elif (
            name == "overlap"
            and value == "off"
            and question.hidden_s is None
            and not (question.nbytes and question.fabric)
        ):
            lack = "how much is hidden now is not known: give --timeline, or --bytes and --network"
        elif name == "input" and not model.has_input:
            lack = "input is counted as compute: give a column dummy, or a run with a loader of farandole.data"
        elif name == "batch" and not model.batch:
            lack = "the batch that was measured is not known: give a column batch"
        elif name == "batch" and not (value.replace(".", "", 1).isdigit() and float(value) > 0):
            lack = "give a number of samples of one rank, above 0"
        if lack:
            raise UsageError(f"--what-if {name}={value} cannot be answered: {lack}")


def changed(model: Model, question: Question, ranks: float, hosts: float) -> Floats:
    """Seconds of a step with what-ifs, one for each draw."""
    parts = _parts(model, question, ranks, hosts)
    return np.asarray(sum(parts.values()) * model.spread(ranks))


def _parts(model: Model, question: Question, ranks: float, hosts: float) -> dict[str, Floats]:
    changes = question.changes
    parts = model.parts(ranks, hosts, load_of(model, question))
    if "input" in changes:
        parts |= {name: np.zeros_like(parts[name]) for name in INPUT}
    if changes.get("control") == "tree" and ranks > 1:
        levels = (HOUSE_RADIX + 1) * math.log(ranks) / math.log(HOUSE_RADIX)
        parts["control"] = parts["control"] * min(1.0, levels / (ranks - 1))
    if "network" in changes or "overlap" in changes:
        seen = np.asarray(sum(parts[name] for name in COMMUNICATION))
        parts |= {name: np.zeros_like(seen) for name in COMMUNICATION}
        parts["between"] = _exchange(question, seen, parts["compute"], ranks, hosts)
    return parts


def _exchange(question: Question, seen: Floats, compute: Floats, ranks: float, hosts: float) -> Floats:
    """Exposed communication after changes, from the measured communication ``seen``."""
    now = _formula(question, question.fabric, ranks, hosts)
    hidden = np.full_like(seen, (question.hidden_s or 0.0) * question.steps)
    if question.hidden_s is None:
        hidden = np.maximum(0.0, now - seen)
    total = seen + hidden
    if "network" in question.changes:
        total = np.maximum(0.0, total + _formula(question, network(question.changes["network"]), ranks, hosts) - now)
    if "overlap" not in question.changes:
        return np.maximum(0.0, total - hidden)
    if question.changes["overlap"] == "off":
        return total
    backward = BACKWARD * compute
    return np.array([exposed(float(c), float(b), BUCKETS) for c, b in zip(total, backward, strict=True)])


def _formula(question: Question, fabric: Fabric | None, ranks: float, hosts: float) -> float:
    if not fabric or not question.nbytes:
        return 0.0
    return question.steps * hierarchical(question.nbytes, ranks / hosts, hosts, question.inside, fabric)


# -- words ------------------------------------------------------------------------------------------------------------


def advice(rows: Sequence[Expectation]) -> str:
    """One sentence on the number of ranks that is worth its price."""
    if len(rows) < 2:
        return "One number of ranks leaves nothing to choose."
    if not all(row.training for row in rows):
        kept = [row for row in rows if row.efficiency.middle >= KEPT]
        most = kept[-1] if kept else rows[0]
        text = f"Up to {most.ranks:,} ranks each does at least {KEPT:.0%} of what it did on the fewest"
        return f"{text}; whether larger batches are worth it needs epochs (--noise-scale or --rcp)."
    times = [row.training.middle for row in rows if row.training]
    for (row, more), (time_s, then_s) in zip(pairwise(rows), pairwise(times), strict=True):
        per_doubling = 1 - (then_s / time_s) ** (math.log(2) / math.log(more.ranks / row.ranks))
        if per_doubling < WORTH:
            price = more.node_hours / row.node_hours
            saved = (
                f"buy {100 * (1 - then_s / time_s):.0f} %"
                if then_s < time_s
                else f"lose {100 * (then_s / time_s - 1):.0f} %"
            )
            return f"Above {row.ranks:,} ranks you {saved} for {price:.2g} times the price ({more.ranks:,} ranks)."
    return f"Up to {rows[-1].ranks:,} ranks each doubling saves at least {WORTH:.0%} of the time."


def caveats(model: Model, question: Question, rows: Sequence[Expectation]) -> list[str]:
    """Reasons for doubt, each with a remedy."""
    found, steps = [], model.steps
    sizes = sorted({o.ranks for o in steps})
    hosts = max(o.hosts for o in steps)
    if hosts == 1 and rows[-1].hosts > 1:
        source = "follows from --bytes and --network" if known(question) else "is a guess, up to a fifth of a step"
        found.append(f"No measurement spans two hosts: what the network costs {source}; measure on two.")
    if len(sizes) < 3:
        numbers = f"{len(sizes)} number{'s' * (len(sizes) > 1)} of ranks"
        found.append(f"{numbers} cannot distinguish communication from stragglers.")
    if rows[-1].ranks > FARTHEST * model.most:
        found.append(
            f"Beyond {FARTHEST * model.most:,.0f} ranks, {FARTHEST} times those measured, nothing was ever checked."
        )
    scatter = float(np.median(np.std(model.residuals[: len(steps)], axis=0)))
    if scatter > 0.03:
        found.append(f"Measurements are {scatter:.0%} off any such curve: something in them is not in the model.")
    if not model.has_input:
        found.append("Waiting for input is counted as compute: no dummy data, no loader that reports it.")
    if "batch" in question.changes:
        found.append("Compute is assumed to be in proportion to the batch.")
    if question.epochs and question.epochs.most and model.batch and rows[-1].ranks * model.batch > question.epochs.most:
        found.append(f"No batch above {question.epochs.most:,.0f} was tried: epochs beyond it are a straight line.")
    if unknown := [row.ranks for row in rows if not row.is_known]:
        found.append(
            f"From {unknown[0]:,} ranks on the interval is wider than a factor of {WIDEST:g}: that cannot be known."
        )
    return found


def with_change(question: Question, change: str) -> Question:
    """The question with one more what-if, "name=value"."""
    name, _, value = change.partition("=")
    if not value:
        raise UsageError(f"--what-if {change}: what-ifs are {WHAT_IFS}")
    if name == "network":
        network(value)
    return dataclasses.replace(question, changes={**question.changes, name: value})
