"""``farandole search``: hyper-parameters for a function in a script, in a space that a file describes."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farandole.control.monitor_messages import LOOPBACK
from farandole.errors import UsageError
from farandole.search.lease_pool import LEASES_FOLDER, add_lease_options, lease_pool
from farandole.search.space import Space
from farandole.settings import Settings

EXAMPLES = """\
examples:
  farandole search train.py space.toml --trials 32 --pool 8 --epochs 27
  farandole search train.py:tune space.toml --workers 1,4 --folder runs/lr
  farandole search train.py space.toml --pool 8 --live
  farandole search train.py space.toml --lease 1x4@1h --max-np 16 --budget 200nh
  optuna-dashboard runs/lr/trials.log

Calls a function of the script, 'train' unless another is named, for many trials
on a pool of workers that are started once. It has one argument:

  def train(trial):
      for epoch in range(1, trial.epochs + 1):
          loss = ...              # with trial.parameters["lr"]
          trial.report(loss, epoch)

The space is a file of TOML, with a table for each hyper-parameter:

  [lr]
  low = 1e-4
  high = 1.0
  log = true

  [batch]
  choices = [32, 64, 128]

Bad trials pause early, by ASHA (asynchronous successive halving): a trial
trains for --min-epochs, up to the first rung. Of the trials that have reached
it, the best one in --reduction continues, and the others pause. The next rung
is at --reduction times as many epochs, and so on. A paused trial continues
later if others turn out worse, so no trial waits. With --min-epochs equal
to --epochs every trial trains to its end. Free workers join the best trials.
With --lease, the search requests nodes from Slurm while its trials can use
them: farandole ps FOLDER/pool. With --pool leases, it uses nodes that other
jobs lend: farandole join FOLDER/pool.
A search that was ended or killed continues when it is called again with the
same folder, also with more --trials or --epochs. The folder contains run.json,
trials.log, output/ and checkpoints/.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``search`` to the commands."""
    parser = subparsers.add_parser(
        "search",
        help="search for hyper-parameters on a pool of workers",
        usage="farandole search SCRIPT[:FUNCTION] SPACE [options]",
        description=EXAMPLES,
    )
    parser.add_argument("script", metavar="SCRIPT", help="Python file with the function, and its name if not 'train'")
    parser.add_argument("space", metavar="SPACE", help="file of TOML with the hyper-parameters")
    many = parser.add_argument_group("how many")
    many.add_argument("--trials", type=int, default=32, metavar="N", help="trials to make (default: 32)")
    many.add_argument("--epochs", type=int, default=1, metavar="N", help="epochs of a whole training (default: 1)")
    many.add_argument("--min-epochs", type=int, default=1, metavar="N", help="epochs up to the first rung (default: 1)")
    many.add_argument("--reduction", type=int, default=3, metavar="N", help="one in N goes on at a rung (default: 3)")
    many.add_argument("--deadline", type=float, default=math.inf, metavar="S", help="end after so many seconds")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--pool", default="1", metavar="N", help="workers on this host (default: 1), or 'leases': nodes that jobs lend"
    )
    where.add_argument("--hosts", default="", metavar="A:N,B:N", help="workers on these hosts, which share the folder")
    where.add_argument("--workers", default="1", metavar="N,N", help="fewest and most of each trial (default: 1)")
    where.add_argument("--folder", default="", metavar="FOLDER", help="folder of the search (default: a new one)")
    where.add_argument("--save", metavar="PICTURE", help="draw the search at its end (needs farandole[plot])")
    add_lease_options(parser)
    told = parser.add_argument_group("watching")
    told.add_argument("--live", action="store_true", help="serve a live page of the search, and print its link")
    told.add_argument("--live-listen", default="", metavar="HOST:PORT", help=f"its address (default: {LOOPBACK})")
    told.add_argument("--live-certificate", default="", metavar="FILE", help="key and certificate (PEM) of the page")
    told.add_argument(
        "--live-stay",
        type=float,
        default=Settings().live_stay_s,
        metavar="SECONDS",
        help="seconds that the page is served after the search (default: %(default)g)",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--advisor", choices=("tpe", "random", "cbo"), default="tpe", help="method (default: tpe)")
    how.add_argument("--maximize", action="store_true", help="large values are good (default: small ones)")
    how.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the proposals (default: 0)")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Search; returns the exit status, which is 1 if no trial was complete."""
    from farandole.search.api import search  # not at the top: other commands do not need it

    leases = lease_pool(args)
    if leases is not None and args.prints:
        print(leases.text(Path(args.folder or "FOLDER").absolute() / LEASES_FOLDER), end="")
        return 0
    function = function_of(args.script)
    result = search(
        function,
        args.space,
        args.trials,
        workers_of(args.workers),
        leases or (int(args.pool) if args.pool.isdecimal() else args.pool),
        epochs=args.epochs,
        min_epochs=args.min_epochs,
        reduction=args.reduction,
        direction="maximize" if args.maximize else "minimize",
        advisor=args.advisor,
        seed=args.seed,
        deadline_s=args.deadline,
        folder=args.folder,
        hosts=args.hosts,
        live=args.live,
        live_listen=args.live_listen,
        live_certificate=args.live_certificate,
        live_stay_s=args.live_stay,
    )
    if result.best is not None:
        told = " ".join(f"{name}={value}" for name, value in result.best.parameters.items())
        print(f"the best is trial {result.best.number} with {result.best.value:.6g}: {told}")
    if args.save:
        from farandole.search.picture import draw_search

        draw_search(result, Space.read(args.space), args.save)
    if not result.is_over:
        print(f"its time was over; to go on, say the same with --folder {result.folder}")
    return 0 if result.best is not None else 1


def function_of(told: str) -> Callable[[Any], Any]:
    """Function of a script, given as ``SCRIPT`` or ``SCRIPT:FUNCTION``.

    The script is loaded as a module with its own name, in the same way as the workers load it.
    """
    file, _, name = told.partition(":")
    path, name = Path(file), name or "train"
    if not path.is_file():
        raise UsageError(f"there is no script {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file: its name must end in .py")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found: Callable[[Any], Any] | None = getattr(module, name, None)
    if found is None or not callable(found):
        legal = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise UsageError(f"{path} has no function {name}: give SCRIPT:FUNCTION, with one of {', '.join(legal)}")
    return found


def workers_of(told: str) -> tuple[int, int]:
    """Minimum and maximum number of workers of a trial, from the option ``--workers``.

    >>> workers_of("1,4"), workers_of("2")
    ((1, 4), (2, 2))
    """
    words = told.split(",")
    if len(words) > 2 or not all(word.strip().isdecimal() for word in words):
        raise UsageError(f"--workers {told}: give one number, or the fewest and the most, as in 1,4")
    return int(words[0]), int(words[-1])
