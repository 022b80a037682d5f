"""``farandole models``: commands that make, show, verify and measure models with a fact sheet.

farandole models list
farandole models verify farandole-models/landcover
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from farandole.errors import ModelError, UsageError
from farandole.launch.command.options import read_file

MODELS = "farandole-models"

EXAMPLES = """\
examples:
  farandole models add farandole-models/jets --weights model.safetensors \\
      --facts facts.toml --results examples/jets/results/results.json
  farandole models list
  farandole models show farandole-models/jets
  farandole models verify farandole-models/*
  farandole models bench farandole-models/jets --forward mynet:forward
  farandole models card farandole-models/jets

In a script: farandole.models.save(folder, model, licence=..., figures=...),
and load(folder, into=model), which refuses what does not verify.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``models`` to the commands."""
    parser = subparsers.add_parser(
        "models", help="models with a fact sheet", usage="farandole models VERB ...", description=EXAMPLES
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    told = _verb(verbs, "list", "the models in a folder", _list, "[FOLDER]")
    told.add_argument("folder", nargs="?", default=MODELS, metavar="FOLDER", help=f"default: {MODELS}")
    told = _verb(verbs, "show", "the facts of a model", _show, "MODEL [--json]")
    told.add_argument("model", metavar="MODEL", help="its folder")
    told.add_argument("--json", action="store_true", help="for programs")
    told = _verb(verbs, "verify", "exit status 1 if one does not verify", _verify, "MODEL ...")
    told.add_argument("models", nargs="+", metavar="MODEL", help="their folders")
    told = _verb(verbs, "card", "print its card, README.md", _card, "MODEL [--write]")
    told.add_argument("model", metavar="MODEL", help="its folder")
    told.add_argument("--write", action="store_true", help="write the facts into it anew; its prose stays")
    told = _verb(
        verbs, "bench", "measure it on this machine, and note that", _bench, "MODEL [--forward MODULE:FUNCTION]"
    )
    told.add_argument("model", metavar="MODEL", help="its folder")
    told.add_argument(
        "--forward", default="", metavar="MODULE:FUNCTION", help="of (weights, batch): returns what does one pass"
    )
    told.add_argument("--batch", type=int, default=32, metavar="N", help="samples of a pass (default: 32)")
    _add_options(_verb(verbs, "add", "make one of a safetensors file", _add, "MODEL --weights FILE [options]"))


def _verb(
    verbs: Any, name: str, words: str, main: Callable[[argparse.Namespace], int], usage: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=words, usage=f"farandole models {name} {usage}")
    parser.set_defaults(main=lambda args: _with_libraries(main, args))
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a new folder")
    parser.add_argument("--weights", required=True, metavar="FILE", help="a safetensors file")
    parser.add_argument("--facts", default="", metavar="FILE", help="TOML: intro, licence, contact, task, methods, ...")
    parser.add_argument("--data", action="append", default=[], metavar="INDEX", help="of farandole data index")
    parser.add_argument("--run", default="", metavar="RUN", help="the recorded run that made it")
    parser.add_argument("--results", default="", metavar="FILE", help="results.json of an application")
    parser.add_argument("--figure", action="append", default=[], metavar="NAME=VALUE±HALF", help="may be repeated")
    parser.add_argument("--file", action="append", default=[], metavar="FILE", help="a part of the recipe: train.py")


def _with_libraries(main: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    try:
        return main(args)
    except ModuleNotFoundError as error:
        raise UsageError(f'models need the package {error.name}: pip install "farandole[models]"') from error


def _list(args: argparse.Namespace) -> int:
    from farandole.models import folder

    root = Path(args.folder)
    found = sorted(path.parent for path in root.glob(f"*/{folder.SUMS}")) if root.is_dir() else []
    if not found:
        raise UsageError(f"there is no model in {root}: make one with farandole.models.save, or farandole models add")
    rows = []
    for path in found:
        try:
            sheet = folder.facts(path)[2]
        except ModelError as error:
            rows.append((path.name, "refused", str(error), ""))
            continue
        figures = ", ".join(f"{figure.name} {figure.text}" for figure in sheet.figures[:3])
        rows.append((path.name, f"{sheet.weights.parameters:,}", figures, sheet.licence))
    _print_table(("model", "parameters", "figures", "licence"), rows)
    return 0


def _show(args: argparse.Namespace) -> int:
    from farandole.models import card, folder

    digest, _, sheet = folder.facts(Path(args.model))
    if args.json:
        print(msgspec.json.format(msgspec.json.encode({"digest": digest, "facts": sheet}), indent=1).decode())
        return 0
    print(f"{sheet.name}: {sheet.intro or 'no introduction'}\ndigest sha256:{digest}")
    for title, head, rows in card.told(sheet):
        print(f"\n{title}")
        plain = [[cell.strip("`") for cell in row] for row in rows]
        _print_table(head, plain, has_head=title != "Facts")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from farandole.models import folder

    status = 0
    for path in map(Path, args.models):
        try:
            found = folder.verified(path)
            problems = found.problems
        except ModelError as error:
            problems = [str(error)]
        if problems:
            status = 1
            print(f"{path}: refused", *(f"  {problem}" for problem in problems), sep="\n")
        else:
            print(f"{path}: verified, sha256:{found.digest}")
    return status


def _card(args: argparse.Namespace) -> int:
    from farandole.models import folder

    path = Path(args.model)
    sheet = folder.facts(path)[2]
    if args.write:
        folder.update(path, sheet)
        print(f"written: {path / folder.CARD}")
    else:
        print(folder.card_of(path), end="")
    return 0


def _bench(args: argparse.Namespace) -> int:
    from farandole.models import bench, folder

    if args.batch < 1:
        raise UsageError(f"--batch {args.batch}: at least one sample")
    machine = bench.measure(args.model, args.forward, args.batch)
    folder.update(Path(args.model), bench.with_machine(folder.facts(Path(args.model))[2], machine))
    print(f"{machine.processor}, {machine.cores} cores{machine.accelerator and ', ' + machine.accelerator}")
    print(f"verified and loaded in {machine.load_s:.3g} s: {machine.load_bytes_per_s / 1e6:.3g} MB/s")
    if machine.forward:
        low, middle, high = (1000 * each for each in machine.latency_s)
        print(f"one sample in {middle:.3g} ms (half of the passes: {low:.3g} to {high:.3g})")
        print(f"{machine.samples_per_s:.4g} samples/s in batches of {machine.batch}")
    return 0


def _add(args: argparse.Namespace) -> int:
    from farandole.models import registry
    from farandole.models.sheet import figure_of, figures_of_results, given
    from farandole.models.weights import decode

    facts = read_file(args.facts) if args.facts else {}
    facts["data"] = [*_listed(facts.get("data", [])), *args.data]
    told = given(facts, args.facts or "the options")
    figures = [*told.get("figures", []), *(figure_of(each) for each in args.figure)]
    told["figures"] = figures + (figures_of_results(Path(args.results)) if args.results else [])
    if args.run:
        told["recipe"] = _recipe(args.run)
    try:
        arrays = decode(Path(args.weights).read_bytes())
    except ModelError as error:
        raise UsageError(f"--weights {args.weights}: {error}") from error
    files = [*args.file, *([args.results] if args.results else [])]
    digest = registry.add(args.model, arrays, "numpy", told, files)
    print(f"{args.model}: sha256:{digest}")
    return 0


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _recipe(run: str) -> Any:
    from farandole.models import registry
    from farandole.monitor.folder import MemberRecord, read_info, read_records

    sizes = [len(record.hosts) for record in read_records(run) if isinstance(record, MemberRecord)]
    return registry.recipe_of(read_info(run), max(sizes, default=0))


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]], has_head: bool = True) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=has_head, padding=(0, 2, 0, 0), pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)
