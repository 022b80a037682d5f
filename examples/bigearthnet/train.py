r"""Train a small ResNet on patches of twelve bands, on as many workers as you like.

    farandole run -np 2 python -m examples.bigearthnet.train
    farandole run -np 2 python -m examples.bigearthnet.train --optimizer lars --workers 64 --base-lr 0.1
    farandole run -np 8 -H a:4,b:4 python -m examples.bigearthnet.train --archive BigEarthNet-v1.0 \
        --train train.csv --test test.csv --nomenclature 19 --pixels 120 --stage --limit 200GB

Without --archive the patches are synthetic. With --workers, more workers than there are processes are emulated: each
process plays several in turn, and the steps are those that so many processes would make. The learning rate is scaled to
the global batch, warmed up and decayed; the script prints why. With --stage the archive is copied to the hosts' own
disks, each byte once from where it lies. At the end stands whether training has waited for its input, and why.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

import farandole.torch as hvd
from examples.bigearthnet.data import Data, real, synthetic
from examples.bigearthnet.nomenclature import CLASSES
from examples.bigearthnet.training import Plan, seeded_model, train


def main() -> None:
    """Parse, train, and say how it went; rank 0 speaks."""
    options = arguments()
    hvd.init()
    torch.set_num_threads(options.threads)
    console = Console(quiet=hvd.rank() > 0, highlight=False, markup=False, soft_wrap=True)
    plan = Plan(
        optimizer=options.optimizer,
        workers=options.workers or hvd.size(),
        worker_batch=options.worker_batch,
        base_lr=options.base_lr,
        base_batch=options.base_batch,
        epochs=options.epochs,
        warmup_epochs=options.warmup_epochs,
        width=options.width,
        seed=options.seed,
        loaders=options.loaders if options.archive else 0,
    )
    console.print(str(plan.recipe()))
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("training", total=plan.epochs)

        def after_epoch(epoch: int, loss: float, f1: float) -> None:
            said = f"loss {loss:.4f} F1 {f1:.3f}"
            progress.update(bar, completed=epoch, description=said)
            if not console.is_terminal:  # a log gets lines
                console.print(f"{'━' * epoch}{'╌' * (plan.epochs - epoch)} {epoch:2}/{plan.epochs} {said}")

        data = load(options)
        keep = {"checkpoints": options.checkpoints, "ledger": options.ledger}
        outcome = train(seeded_model(plan, data), plan, data, after_epoch, **keep)
    console.print(f"micro-F1  {outcome.f1:.4f} on test patches, after {outcome.steps} steps of {plan.global_batch}")
    if plan.loaders:  # on all ranks, which make the report together
        console.print(str(hvd.data.report()))
    console.print(f"workers   {plan.workers} ({outcome.kind}: {outcome.processes} processes), {outcome.seconds:.0f} s")


def load(options: argparse.Namespace) -> Data:
    """The data that were asked for."""
    if options.archive is None:
        return synthetic(options.patches, max(1, options.patches // 4), spectral_gap=options.spectral_gap)
    if options.train is None or options.test is None:
        raise SystemExit("--archive needs --train and --test: files with the names of patches, one to a line")
    return real(
        options.archive,
        options.train,
        options.test,
        nomenclature=options.nomenclature,
        pixels=options.pixels,
        cache=options.stage,
        limit=options.limit,
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--optimizer", choices=("sgd", "lars", "lamb"), default="sgd")
    add("--workers", type=int, default=0, help="virtual ones, a multiple of the processes (default: as many)")
    add("--worker-batch", type=int, default=8, help="patches per worker and step")
    add("--base-lr", type=float, default=0.8, help="learning rate that is good with --base-batch")
    add("--base-batch", type=int, default=16)
    add("--epochs", type=int, default=10)
    add("--warmup-epochs", type=float, default=2.0)
    add("--width", type=int, default=8, help="channels of the first block")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=1, help="of each process")
    add("--patches", type=int, default=2048, help="synthetic ones to train on; a quarter as many to test")
    add("--spectral-gap", type=float, default=0.6, help="how far apart the classes are: 1 easy, 0 only texture tells")
    add("--archive", type=Path, help="folder of the real BigEarthNet-S2, instead of synthetic patches")
    add("--train", type=Path, help="file with the names of patches to train on")
    add("--test", type=Path, help="file with the names of patches to test on")
    add("--nomenclature", type=int, choices=tuple(CLASSES), default=19)
    add("--pixels", type=int, default=120, help="of the grid that all bands are resampled to")
    add("--loaders", type=int, default=8, help="threads of each process that read patches of the archive")
    add(
        "--stage",
        nargs="?",
        const="$TMPDIR",
        default="",
        metavar="CACHE",
        help="folder of each host (without: $TMPDIR)",
    )
    add("--checkpoints", default="", metavar="FOLDER", help="write one after each epoch, and go on from the newest")
    add("--ledger", default="", metavar="FOLDER", help="write down which rank has trained on which samples")
    add("--limit", help="size of each cache, one of training and one of test patches: 200GB (default: what is free)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
