"""Card of a model, the ``README.md`` of model hubs: made of the facts, and compared with them.

    text = written(sheet)                 # YAML front matter by huggingface_hub, prose, and the tables of the facts
    problems(text, sheet)                 # what of it is not what the facts say, in words
    renewed(text, sheet)                  # the same card with the facts as they are now; its prose stays

The front matter of a card, and the text between the two marks, are made of the facts. Everything else is prose, and
free to edit. Nothing here uses the network.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from farandole.errors import ModelError, UsageError
from farandole.models.sheet import FactSheet, MachineFacts

BEGIN = "<!-- facts of the model, from facts.json: farandole models card --write makes them anew -->"
END = "<!-- end of the facts -->"
Told: TypeAlias = tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]

LIBRARIES = {"pytorch": "pytorch", "keras": "keras", "jax": "jax"}
"""Names of frameworks on model hubs."""

_BLOCK = re.compile(re.escape(BEGIN) + r"\n(.*?)" + re.escape(END), re.DOTALL)
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


def written(sheet: FactSheet) -> str:
    """A new card."""
    return (
        f"{_front(sheet)}\n# {sheet.name}\n\n{sheet.intro or 'No introduction yet.'}\n\n{BEGIN}\n{tables(sheet)}{END}\n"
    )


def renewed(text: str, sheet: FactSheet) -> str:
    """The card with the facts of ``sheet``, and the prose of ``text``."""
    if not _BLOCK.search(text) or not _FRONT.match(text):
        return written(sheet)
    body = _BLOCK.sub(lambda _: f"{BEGIN}\n{tables(sheet)}{END}", _FRONT.sub("", text), count=1)
    return _front(sheet) + body


def digest(text: str) -> str:
    """Digest of the parts of a card that are made of the facts, front matter and marked text; "" if one is missing."""
    front, blocks = _FRONT.match(text), _BLOCK.findall(text)
    if front is None or len(blocks) != 1:
        return ""
    return hashlib.sha256(f"{front[1]}\n{blocks[0]}".replace("\r\n", "\n").encode()).hexdigest()


def problems(text: str, sheet: FactSheet) -> list[str]:
    """Differences between the card and the facts; none if the card has the digest that was noted with the facts."""
    if digest(text) == sheet.card:
        return []
    front, blocks = _FRONT.match(text), _BLOCK.findall(text)
    if front is None or len(blocks) != 1:
        return [f"README.md has {'no' if front is None else 'a'} front matter, and {len(blocks)} tables of facts"]
    try:
        said, meant = _parsed(text, front[1]), _parsed(_front(sheet), "")
    except ModelError as error:
        return [f"README.md: {error}"]
    found = [
        f"README.md says {name}: {_short(said.get(name))}, and the facts say {_short(meant.get(name))}"
        for name in sorted({*said, *meant})
        if said.get(name) != meant.get(name)
    ]
    mine, theirs = blocks[0].splitlines(), tables(sheet).splitlines()
    differing = [line for line in mine if line not in theirs] + [line for line in theirs if line not in mine]
    if differing:
        found.append(f"README.md: the table of facts was edited: {differing[0][:100]}")
    return found or ["README.md: its front matter or its table of facts was edited"]


def _parsed(text: str, front: str) -> dict[str, Any]:
    """Parse front matter by huggingface_hub. Anchors are refused, because a few can expand to billions of values."""
    hub = _hub()
    import yaml

    try:
        if any(isinstance(token, yaml.AliasToken | yaml.AnchorToken) for token in yaml.scan(front)):
            raise ModelError("its front matter has anchors, which no card needs")
        parsed: dict[str, Any] = hub.ModelCard(text).data.to_dict()
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"its front matter cannot be read: {str(error).splitlines()[0][:160]}") from error
    return parsed


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    return repr(value)[:60] if isinstance(value, str | int | float) else "something else" if value else "nothing"


def _front(sheet: FactSheet) -> str:
    """The front matter, with its fences."""
    hub = _hub()
    data = hub.ModelCardData(
        license=sheet.licence or None,
        library_name=LIBRARIES.get(sheet.weights.framework),
        pipeline_tag=sheet.task or None,
        tags=["farandole", *dict.fromkeys(_tag(method) for method in sheet.methods)],
        model_name=sheet.name,
        eval_results=_evaluations(sheet, hub) or None,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _tag(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _evaluations(sheet: FactSheet, hub: Any) -> list[Any]:
    data = sheet.data[0] if sheet.data else None
    return [
        hub.EvalResult(
            task_type=sheet.task or "other",
            dataset_type="other" if data is None else data.format or "other",
            dataset_name="unnamed" if data is None else data.name,
            dataset_revision=(data.digest or None) if data is not None else None,
            metric_type=figure.name,
            metric_name=figure.meaning or figure.name,
            metric_value=figure.value,
            metric_args=_interval(figure.interval, len(figure.seeds)),
        )
        for figure in sheet.figures
    ]


def _interval(half: float | None, seeds: int) -> dict[str, Any] | None:
    if half is None:
        return None
    return {"interval_95": half} | ({"seeds": seeds} if seeds else {})


# -- the tables -------------------------------------------------------------------------------------------------------


def tables(sheet: FactSheet) -> str:
    """The facts in Markdown."""
    return "\n".join(f"## {title}\n\n{_table(head, rows)}" for title, head, rows in told(sheet))


def told(sheet: FactSheet) -> list[Told]:
    """The facts as tables: title, heads of the columns, and rows of each."""
    weights, recipe = sheet.weights, sheet.recipe
    facts = {
        "contact": ", ".join(sheet.contact),
        "licence": sheet.licence,
        "methods": ", ".join(sheet.methods),
        "codes and libraries": ", ".join(f"{name} {version}" for name, version in sheet.libraries.items()),
        "use of HPC": sheet.hpc or (f"{recipe.workers} workers" if recipe.workers > 1 else ""),
        "platforms": ", ".join(sheet.platforms),
        "weights": f"{weights.parameters:,} parameters in {len(weights.tensors)} tensors, {weights.nbytes:,} bytes",
        "SHA-256 of the weights": f"`{weights.sha256}`",
        "command": _code(" ".join(recipe.command)),
        "settings": ", ".join(f"{name}={value}" for name, value in recipe.settings.items()),
        "seeds": ", ".join(f"{name} {value}" for name, value in recipe.seeds.items()),
        "commit": recipe.git,
        "Farandole": recipe.farandole,
    }
    told: list[Told] = [("Facts", ("fact", "value"), [(name, text) for name, text in facts.items() if text])]
    if sheet.data:
        data = [(d.name, d.format, f"{d.samples:,}", d.location, _code(d.digest)) for d in sheet.data]
        told.append(("Data", ("data set", "format", "samples", "location", "digest of its manifest"), data))
    if sheet.figures:
        figures = [(f.name, f.meaning, f.text, " ".join(f"{v:.4g}" for v in f.seeds.values())) for f in sheet.figures]
        told.append(("Figures", ("figure", "meaning", "value ± 95 %", "of the seeds"), figures))
    if sheet.machines:
        columns = ("machine", "load", "latency of one", "samples/s", "with")
        told.append(("Machines", columns, [_machine(machine) for machine in sheet.machines]))
    return told


def _machine(machine: MachineFacts) -> tuple[str, ...]:
    where = f"{machine.processor}, {machine.cores} cores" + (f", {machine.accelerator}" if machine.accelerator else "")
    latency = f"{1000 * machine.latency_s[1]:.3g} ms" if machine.latency_s else ""
    rate = f"{machine.samples_per_s:.3g} (batch {machine.batch})" if machine.batch else ""
    return where, f"{machine.load_s:.3g} s", latency, rate, machine.forward


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(head), _row(["---"] * len(head)), *(_row([_cell(each) for each in row]) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """Text of one cell, in which nothing breaks the table (a pipe, the end of a line) or ends the block of facts."""
    return " ".join(text.replace("|", "\\|").replace("<!--", "&lt;!--").split())


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`" if text else ""


def _hub() -> Any:
    """The library huggingface_hub. Raises ``UsageError`` if it is missing."""
    try:
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise UsageError(f'models need {error.name}: pip install "farandole[models]"') from error
