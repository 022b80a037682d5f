"""Save and load models with their facts: the functions of ``farandole.models``."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from farandole.errors import ModelError, NotInitializedError, UsageError
from farandole.models import folder as folders
from farandole.models.sheet import FactSheet, TrainingFacts, WeightFacts, figures_of_results, given
from farandole.models.weights import Arrays, arrays_of, encode, facts_of, fill
from farandole.monitor.describe import describe
from farandole.monitor.folder import RunInfo
from farandole.runtime.session.init import current
from farandole.settings import Settings

StrPath: TypeAlias = str | os.PathLike[str]

WEIGHING = ("safetensors", "ml_dtypes", "torch", "tensorflow", "keras", "jax", "numpy")
"""Packages whose versions tell which software can read the weights."""


def save(
    folder: StrPath,
    weights: Any,
    *,
    results: StrPath | None = None,
    files: Iterable[StrPath] = (),
    name: str = "",
    seeds: Mapping[str, Any] | None = None,
    **facts: Any,
) -> str:
    """Write a model and its facts to a new folder; returns the model's digest.

        if hvd.rank() == 0:
            models.save("models/landcover", model, licence="apache-2.0", contact="ana@example.org", data=source,
                        figures={"f1": (0.78, 0.01)}, seeds={"seed": 3}, intro="Land cover of Sentinel-2 patches.")

    ``weights``: a PyTorch module or its ``state_dict``, a Keras model, or nested dicts, lists and tuples of arrays, as
    in JAX and NumPy, of any type of safetensors, including bfloat16 and float8. ``data``: a source of
    ``farandole.data``, its manifest, the path of an index, a table, or a list of these. ``figures``: by name, each a
    number or a pair of number and half of its 95 % interval, in the unit of the figure; ``results``: a ``results.json``
    of an application, whose figures get Student intervals over its seeds. ``files`` are copied, as parts of the recipe.
    Further ``facts``: ``intro``, ``licence`` (as in SPDX, in lower case), ``contact``, ``task`` (its name on hubs:
    ``image-segmentation``), ``methods``, ``libraries``, ``hpc``, ``platforms``. Command, settings, workers, seeds of
    the command line, commit and versions are detected. Called by one rank: it does not communicate.

    Raises ``UsageError`` for invalid facts, for weights that are no numbers, and if the folder is not empty;
    ``OSError`` if the disk cannot be written.
    """
    arrays, framework = arrays_of(weights)
    told = given(facts)
    told.setdefault("libraries", _libraries())
    told.setdefault("recipe", _recipe(describe(sys.orig_argv), seeds or {}))
    if results is not None:
        told["figures"] = [*told.get("figures", ()), *figures_of_results(Path(results))]
    return add(folder, arrays, framework, told, [*files, *([] if results is None else [results])], name)


def add(
    folder: StrPath, arrays: Arrays, framework: str, told: Mapping[str, Any], files: Iterable[StrPath], name: str = ""
) -> str:
    """Write named arrays and the facts that ``sheet.given`` has read to a new folder; returns the model's digest."""
    content = encode(arrays, framework)
    weights = WeightFacts(len(content), hashlib.sha256(content).hexdigest(), framework, facts_of(arrays))
    sheet = FactSheet(name or Path(folder).absolute().name, weights, **told)
    copied = {}
    for path in map(Path, files):
        if path.name in (folders.FACTS, folders.WEIGHTS, folders.SUMS, folders.CARD) or path.name in copied:
            raise UsageError(f"{path} would have the name of another file of the model: rename it")
        copied[path.name] = path.read_bytes()
    folders.write(Path(folder), sheet, content, copied)
    return folders.facts(Path(folder))[0]


def load(folder: StrPath, *, into: Any = None, digest: str = "") -> Any:
    """Read the weights of a model that verifies: as named arrays, or put ``into`` a module, a model or a tree.

        weights = models.load("models/landcover")                      # {"conv1.weight": array(...), ...}
        model = models.load("models/landcover", into=Net())            # a module, a Keras model, or a tree of arrays
        models.load("models/landcover", digest="5f0c...")              # and no other model than that one

    Modules and Keras models are filled in place, and returned; of a tree a new one is made. ``digest`` is the result of
    ``save``, which ``farandole models show`` prints, 64 hexadecimal digits. Needs memory for the weights twice. Nothing
    is unpickled, and no code of the folder is run.

    Raises ``ModelError``, with all reasons, if anything in the folder does not verify, and if the weights do not fit.
    """
    found = folders.verified(Path(folder))
    problems = list(found.problems)
    if digest and digest.removeprefix("sha256:") != found.digest:
        problems.insert(0, f"its digest is {found.digest}, not {digest}")
    if problems:
        raise ModelError(f"the model in {os.fspath(folder)} is refused: {'; '.join(problems)}")
    return found.arrays if into is None else fill(into, found.arrays)


def facts(folder: StrPath) -> FactSheet:
    """Facts of a model, without reading its weights. Raises ``ModelError`` if the facts were edited."""
    return folders.facts(Path(folder))[2]


def verify(folder: StrPath) -> list[str]:
    """All reasons for which ``load`` would refuse a model, in words; none if it verifies."""
    try:
        return folders.verified(Path(folder)).problems
    except ModelError as error:
        return [str(error)]


def _recipe(info: RunInfo, seeds: Mapping[str, Any]) -> TrainingFacts:
    try:
        workers = current("models.save()").topology.size
    except NotInitializedError:
        workers = 1
    settings = {n.removeprefix("FARANDOLE_").lower(): v for n, v in Settings.resolve().to_environment().items()}
    named = {**info.seeds, **{name: str(value) for name, value in seeds.items()}}
    return TrainingFacts(info.command, workers, settings, named, info.git, info.farandole)


def recipe_of(info: RunInfo, workers: int) -> TrainingFacts:
    """The recipe of a recorded run."""
    return TrainingFacts(info.command, workers, {}, info.seeds, info.git, info.farandole)


def _libraries() -> dict[str, str]:
    """Versions of the packages that this process has loaded."""
    found = {}
    for name in WEIGHING:
        if name in sys.modules or name == "safetensors":
            distribution = "tensorflow-cpu" if name == "tensorflow" and not _version(name) else name
            if version := _version(distribution):
                found[name] = version
    return found


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
