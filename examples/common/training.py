"""What the trainings of the applications share: options, data that one rank makes, staging, going on, and a bar.

parser = options(__doc__, epochs=15)
folder = made_once(parser.parse_args().data, "timeseries", hvd, lambda folder: write(folder, seed=0))
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.progress import Progress

from farandole import data
from farandole.data import Source
from farandole.errors import UsageError
from farandole.testing.ledger import Ledger

SEED_STRIDE = 1_000_003
"""A sampler draws the order of an epoch from its seed + the epoch: so far apart, no two trainings share one."""


def options(doc: str | None, epochs: int) -> argparse.ArgumentParser:
    """Parser with the options that every application has; ``doc`` is that of its script."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, help="folder of the data set (default: one is made in out/, by rank 0)")
    add(
        "--stage", nargs="?", const="$TMPDIR", default="", metavar="CACHE", help="copy the data to each host's own disk"
    )
    add("--limit", help="size of that cache: 200GB (default: what is free)")
    add("--checkpoints", default="", metavar="FOLDER", help="write one after each epoch, and go on from the newest")
    add("--ledger", default="", metavar="FOLDER", help="write down which worker has computed which sample")
    add("--epochs", type=int, default=epochs)
    add("--seed", type=int, default=0)
    add("--quick", action="store_true", help="tiny data: to see that everything works")
    return parser


def made_once(asked: Path | None, name: str, hvd: Any, make: Callable[[Path], None]) -> Path:
    """Folder of the data: the one that was asked for, or one in ``out/`` that rank 0 makes where there is none yet.

    A folder gets its name when it is whole, so that an interrupted run leaves nothing that looks like data. Raises
    ``UsageError`` for a folder that was asked for and is not there.
    """
    if asked is not None:
        if not asked.is_dir():
            raise UsageError(f"--data {asked}: there is no such folder; leave the option out to have the data made")
        return asked
    folder = Path("out") / name
    if hvd.rank() == 0 and not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        half = folder.with_name(f".{folder.name}-{os.getpid()}")
        make(half)
        half.rename(folder)
    hvd.barrier()
    return folder


def staged(source: Source, cache: str, limit: str | None) -> Source:
    """The source, or its copy on the disks of the hosts where a cache is asked for."""
    return data.stage(source, cache, limit) if cache else source


@contextmanager
def kept(kind: Any, state: Any, checkpoints: str, ledger: str) -> Iterator[tuple[Any, Ledger | None]]:
    """Checkpoints to save into and a ledger, each only if its folder is given.

    ``kind``: the framework's ``Checkpoints``. The state becomes that of the newest one, if there is any; a worker that
    joins others has none.
    """
    with ExitStack() as stack:
        saving = stack.enter_context(kind(checkpoints)) if checkpoints else None
        found = saving.restore() if saving is not None else None
        if found is not None:
            state.load_state_dict(found.state)
        yield saving, stack.enter_context(closing(Ledger(ledger, state))) if ledger else None


@final
class EpochBar:
    """A bar of epochs on a terminal, lines in a log; rank 0 alone draws.

    with EpochBar(epochs=15, shown=hvd.rank() == 0) as bar:
        bar.update(epoch, "loss 0.54")
    """

    def __init__(self, epochs: int, shown: bool) -> None:
        self._console = Console(quiet=not shown, highlight=False, markup=False, soft_wrap=True)
        self._progress = Progress(console=self._console, disable=not self._console.is_terminal)
        self._task = self._progress.add_task("training", total=epochs)
        self._epochs = epochs

    def __enter__(self) -> EpochBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, epoch: int, said: str) -> None:
        """So many epochs have passed."""
        self._progress.update(self._task, completed=epoch, description=said)
        if not self._console.is_terminal:
            self.print(f"{'━' * epoch}{'╌' * (self._epochs - epoch)} {epoch:2}/{self._epochs} {said}")

    def loss(self, epoch: int, loss: float) -> None:
        """So many epochs have passed, the last one with this mean loss."""
        self.update(epoch, f"loss {loss:.4f}")

    def print(self, text: object) -> None:
        """A line beside the bar."""
        self._console.print(str(text))
