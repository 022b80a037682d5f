"""``farandole predict``: how a training scales, from runs on few ranks.

farandole predict runs/one runs/two --to 1024
"""

from __future__ import annotations

import argparse
import importlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from farandole.errors import UsageError

if TYPE_CHECKING:
    from farandole.predict.model import Model, Observation
    from farandole.predict.outlook import Question
    from farandole.predict.training import Epochs

EXAMPLES = """\
examples:
  farandole predict runs/one runs/two --to 1024
      from recorded runs (farandole run --record) on one rank and on two
  farandole predict scaling.csv --ranks-per-host 4 --picture predict.png
      from a table: ranks,seconds[,hosts][,dummy][,input][,wait][,batch]
  farandole predict runs/two --samples 60000 --epochs 20 --noise-scale 900
      with epochs, time and node-hours of the training
  farandole predict runs/two --what-if input=none --what-if batch=64
      if something were different
  farandole predict published --picture published.png
      the method, compared with published tables
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``predict`` to the commands."""
    parser = subparsers.add_parser("predict", help="foretell how a training scales", description=EXAMPLES)
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="recorded runs, a table, or a published table")
    parser.add_argument("--to", type=int, default=27360, metavar="N", help="most ranks (default: 27360)")
    parser.add_argument(
        "--ranks-per-host", type=int, default=0, metavar="N", help="default: the most that was measured"
    )
    parser.add_argument(
        "--steps", type=float, default=1.0, metavar="N", help="number of steps that took the seconds of a table"
    )
    parser.add_argument(
        "--batch", type=float, default=0.0, metavar="N", help="samples of a rank in a step, as measured"
    )
    parser.add_argument("--bytes", type=float, default=0.0, metavar="N", help="bytes of the gradients: 178e6")
    parser.add_argument(
        "--network",
        default="",
        metavar="NAME",
        help="measured on: aries, 25gbe, ..., LATENCY,RATE in us and GB/s, or a file of bench --json",
    )
    parser.add_argument(
        "--timeline", default="", metavar="FILE", help="timeline of such a run: what overlap has hidden"
    )
    parser.add_argument("--samples", type=float, default=0.0, metavar="N", help="samples in an epoch")
    parser.add_argument("--epochs", type=float, default=0.0, metavar="N", help="epochs that the training needs ...")
    parser.add_argument("--base-batch", type=float, default=0.0, metavar="N", help="... in steps of so many samples")
    parser.add_argument(
        "--noise-scale", default="", metavar="N[:LOW:HIGH]", help="gradient noise scale (default: of the run)"
    )
    parser.add_argument(
        "--rcp", default="", metavar="FILE", help="instead: table of batch,epochs; rcp-deepcam, rcp-cosmoflow"
    )
    parser.add_argument("--what-if", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
    parser.add_argument("--picture", default="", metavar="FILE", help="draw it: predict.png")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Read, fit, print and draw."""
    try:
        return _published(args) if args.sources == ["published"] else _predict(args)
    except ModuleNotFoundError as error:
        extra = "plot" if error.name == "matplotlib" else "numpy"
        raise UsageError(f'this needs the package {error.name}: pip install "farandole[{extra}]"') from error


def _predict(args: argparse.Namespace) -> int:
    from farandole.predict import checking, model, outlook, show, sources

    read = [sources.read(path, args.ranks_per_host) for path in args.sources]
    observations = [o for each in read for o in each.observations]
    scale = next((each.noise_scale for each in read if each.noise_scale > 0), math.nan)
    question = _question(args, observations, scale)
    fitted = model.fit(_with_batch(observations, args.batch), outlook.known(question))
    question = _with_ranks(question, fitted, args.to)
    found = outlook.outlook(fitted, question)
    show.show(found, fitted, checking.held_back(fitted.observations), args.what_if)
    if args.picture:
        importlib.import_module("farandole.predict.picture").draw(found, fitted, args.picture)
        print(f"drawn in {args.picture}")
    return 0


def _with_batch(observations: list[Observation], batch: float) -> list[Observation]:
    from dataclasses import replace

    return [replace(o, batch=batch) for o in observations] if batch else observations


def _question(args: argparse.Namespace, observations: list[Observation], noise_scale: float) -> Question:
    from farandole.predict import costs, outlook, sources

    per_host = args.ranks_per_host or max(1, math.ceil(max(o.ranks / o.hosts for o in observations)))
    fabric, inside = None, costs.NVLINK
    if args.network and Path(args.network).is_file():
        is_between, found = sources.benched(args.network)
        fabric, inside = (found, inside) if is_between else (None, found)
    elif args.network:
        fabric = costs.network(args.network)
    question = outlook.Question(
        per_host=per_host,
        samples=args.samples,
        epochs=_epochs(args, noise_scale),
        nbytes=args.bytes,
        fabric=fabric,
        inside=inside,
        hidden_s=sources.hidden_s(args.timeline) if args.timeline else None,
        steps=args.steps,
    )
    for change in args.what_if:
        question = outlook.with_change(question, change)
    return question


def _epochs(args: argparse.Namespace, noise_scale: float) -> Epochs | None:
    from farandole.predict import sources, training

    if args.rcp:
        file = sources.TABLES / f"{args.rcp}.csv"
        table = sources.rows(file if file.exists() else Path(args.rcp))
        if any({"batch", "epochs"} - {*row} for row in table):
            raise UsageError(f"--rcp {args.rcp}: its columns must be batch and epochs")
        return training.from_table([(row["batch"], row["epochs"]) for row in table])
    if not args.epochs:
        return None
    try:
        scale, *bounds = [float(each) for each in args.noise_scale.split(":")] if args.noise_scale else [noise_scale]
    except ValueError:
        scale, bounds = math.nan, []
    if not scale > 0 or not args.base_batch or len(bounds) not in (0, 2):
        raise UsageError(
            "--epochs needs --base-batch, and --noise-scale 900 or 900:600:1400 unless the run has recorded one"
        )
    return training.from_noise_scale(scale, args.epochs, args.base_batch, (bounds[0], bounds[1]) if bounds else None)


def _with_ranks(question: Question, model: Model, most: int) -> Question:
    """Question about the fewest measured ranks, times powers of two, and about ``most``."""
    from dataclasses import replace

    least = int(model.steps[0].ranks)
    if most <= least:
        raise UsageError(f"--to {most}: at least {least} ranks were measured; give more")
    doubled = [least * 2**i for i in range(40) if least * 2**i < most]
    return replace(question, ranks=[*doubled, most])


def _published(args: argparse.Namespace) -> int:
    from farandole.predict import checking, headlines, model, show, sources

    drawn, shown = [], []
    for name in sources.PUBLISHED:
        observations = sources.read(name).observations
        if check := checking.held_back(observations):
            shown.append((name, check, checking.all_cuts(observations)))
            drawn.append((name, model.fit([o for o in observations if o.ranks <= check.most]), check))
    show.show_published(shown, headlines.headlines())
    if args.picture:
        importlib.import_module("farandole.predict.picture").draw_published(drawn, headlines.headlines(), args.picture)
        print(f"drawn in {args.picture}")
    return 0
