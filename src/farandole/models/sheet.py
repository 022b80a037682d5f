"""Fact sheet of a model: description, training, data, figures of quality, and contacts.

    >>> figure = figure_of("mae=0.081±0.004")
    >>> figure.value, figure.interval
    (0.081, 0.004)

The fields are those of the fact sheets of the CoE RAISE (introduction, contacts, codes and libraries, use of HPC,
platforms and data locations, methods of machine learning), and everything that is needed to train the model again. In
the folder of a model it is the file ``facts.json``.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import msgspec

from farandole.errors import UsageError
from farandole.version import __version__

STUDENT_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Quantiles of Student's t at 97.5 %, for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2)."""

_FIGURE = re.compile(r"(?P<name>[^=\s]+)=(?P<value>[^±\s]+)(?:\s*(?:±|\+-|\+/-)\s*(?P<interval>\S+))?")


@final
class TensorFact(msgspec.Struct, frozen=True, array_like=True):
    """Type and shape of one tensor; ``dtype`` is its name in safetensors, such as ``F32`` or ``BF16``."""

    dtype: str
    shape: list[int]

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@final
class WeightFacts(msgspec.Struct, frozen=True):
    """The file of the weights: its size, its SHA-256, and every tensor in it, with the names of ``framework``."""

    nbytes: int
    sha256: str
    framework: str
    tensors: dict[str, TensorFact]

    @property
    def parameters(self) -> int:
        """Number of values in all tensors."""
        return sum(tensor.count for tensor in self.tensors.values())


@final
class DataFacts(msgspec.Struct, frozen=True):
    """A training data set of the model; ``digest`` is the digest of its manifest (``farandole data index``)."""

    name: str
    digest: str = ""
    samples: int = 0
    location: str = ""
    format: str = ""


@final
class ModelFigure(msgspec.Struct, frozen=True):
    """One figure of a model's quality, with half of its 95 % interval, and the values of the seeds."""

    name: str
    value: float
    interval: float | None = None
    meaning: str = ""
    seeds: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def text(self) -> str:
        """Readable text: ``0.081 ± 0.004``."""
        return f"{self.value:.4g}" + ("" if self.interval is None else f" ± {self.interval:.2g}")


@final
class TrainingFacts(msgspec.Struct, frozen=True):
    """The recipe of the training. ``settings`` are settings of Farandole that differ from the defaults."""

    command: list[str] = msgspec.field(default_factory=list)
    workers: int = 0
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    seeds: dict[str, str] = msgspec.field(default_factory=dict)
    git: str = ""
    farandole: str = __version__


@final
class MachineFacts(msgspec.Struct, frozen=True):
    """Measurements of ``farandole models bench`` on one machine: medians, and the quartiles of the latency."""

    processor: str
    cores: int
    memory_bytes: int
    system: str
    accelerator: str = ""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    date: str = ""
    load_s: float = 0.0
    load_bytes_per_s: float = 0.0
    forward: str = ""
    latency_s: list[float] = msgspec.field(default_factory=list)
    batch: int = 0
    samples_per_s: float = 0.0


@final
class FactSheet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All facts of a model. ``card`` is the digest of the parts of its card that are made of them."""

    name: str
    weights: WeightFacts
    intro: str = ""
    licence: str = ""
    contact: list[str] = msgspec.field(default_factory=list)
    task: str = ""
    methods: list[str] = msgspec.field(default_factory=list)
    libraries: dict[str, str] = msgspec.field(default_factory=dict)
    hpc: str = ""
    platforms: list[str] = msgspec.field(default_factory=list)
    data: list[DataFacts] = msgspec.field(default_factory=list)
    recipe: TrainingFacts = msgspec.field(default_factory=TrainingFacts)
    figures: list[ModelFigure] = msgspec.field(default_factory=list)
    machines: list[MachineFacts] = msgspec.field(default_factory=list)
    card: str = ""

    def encode(self) -> bytes:
        """Indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


GIVEN = ("intro", "licence", "contact", "task", "methods", "libraries", "hpc", "platforms", "data", "figures", "recipe")
"""Fields that the publisher of a model gives; the others are detected."""


def given(facts: Mapping[str, Any], source: str = "the call") -> dict[str, Any]:
    """The publisher's facts, converted to the types of `FactSheet`.

    >>> given({"contact": "ana@example.org", "figures": {"mae": 0.1}})["figures"][0].value
    0.1

    Raises ``UsageError`` for a name that is not in ``GIVEN``, and for an invalid value.
    """
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if name not in GIVEN:
            raise UsageError(f"{name!r} in {source} is no fact of a model; the facts are: {', '.join(GIVEN)}")
        meant: Any = value
        if name in ("contact", "methods", "platforms") and isinstance(value, str):
            meant = [value]
        elif name == "figures":
            meant = [figure_of(each) for each in _listed(value)]
        elif name == "data":
            meant = [data_of(each) for each in (value if isinstance(value, list | tuple) else [value])]
        try:
            found[name] = msgspec.convert(meant, _KINDS[name])
        except msgspec.ValidationError as error:
            kind = FactSheet.__annotations__[name]
            raise UsageError(f"{name} in {source} cannot be {value!r} ({error}): it is {kind}") from error
    return found


_KINDS = typing.get_type_hints(FactSheet)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [
            ModelFigure(name, *(each if isinstance(each, tuple) else (float(each),))) for name, each in value.items()
        ]
    return [value] if isinstance(value, str) else list(value)


def figure_of(told: Any) -> ModelFigure:
    """A figure from ``"mae=0.081±0.004"``, from a table with the fields of `ModelFigure`, or from a `ModelFigure`.

    Raises ``UsageError`` for anything else, and for numbers that are not finite.
    """
    match = _FIGURE.fullmatch(told.strip()) if isinstance(told, str) else None
    try:
        if match is not None:
            half = match["interval"]
            told = ModelFigure(match["name"], float(match["value"]), float(half) if half else None)
        figure = msgspec.convert(told, ModelFigure)
        is_finite = math.isfinite(figure.value) and 0 <= (figure.interval or 0.0) < math.inf
    except (ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"{told!r} is no figure ({error}): write NAME=VALUE or NAME=VALUE±INTERVAL") from error
    if not is_finite:
        raise UsageError(f"{told!r} is no figure: its numbers must be finite, and its interval not negative")
    return figure


def figures_of_results(path: Path) -> list[ModelFigure]:
    """Figures of a ``results.json`` that ``python -m examples.NAME --reproduce`` has written.

    Each is the mean over the seeds with half of the Student interval of that mean at 95 %. Raises ``UsageError`` for
    another file.
    """
    try:
        seeds = json.loads(path.read_bytes())["seeds"]
        names = dict.fromkeys(name for each in seeds.values() for name in each["figures"])
        columns = {name: {s: float(each["figures"][name]) for s, each in seeds.items()} for name in names}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is no results.json of an application: it has no figures of seeds ({error})"
        ) from error
    return [figure_of(mean_of(name, column)) for name, column in columns.items()]


def mean_of(name: str, seeds: Mapping[str, float]) -> ModelFigure:
    """Mean of the values of seeds, with half of its Student interval at 95 % if there are two or more.

    >>> mean_of("mae", {"0": 1.0, "1": 2.0, "2": 3.0}).text
    '2 ± 2.5'
    """
    values = list(seeds.values())
    half = None
    if len(values) > 1:
        quantile = STUDENT_975[len(values) - 2] if len(values) - 2 < len(STUDENT_975) else 1.96
        half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return ModelFigure(name, statistics.fmean(values), half, seeds=dict(seeds))


def data_of(told: Any) -> DataFacts:
    """Facts of a data set from a source of ``farandole.data``, its manifest, the path of an index, or a table of facts.

    Raises ``UsageError`` for anything else.
    """
    manifest = getattr(told, "manifest", told)
    if all(hasattr(manifest, name) for name in ("digest", "samples", "root", "format")):
        root = str(manifest.root)
        return DataFacts(Path(root).name, manifest.digest, manifest.samples, root, manifest.format)
    if isinstance(told, Path | str):
        from farandole.data import Manifest  # which needs farandole[data]

        return data_of(Manifest.load(told))
    try:
        return msgspec.convert(told, DataFacts)
    except msgspec.ValidationError as error:
        raise UsageError(f"{told!r} says nothing of a data set: give a source, a manifest, or a table") from error
