"""Worker of a prediction: leases a free block, computes and writes its samples, records it, and takes the next.

    work = Work(plan, output, fn, data, threads=4)
    work.answer_all(rank=0, size=1, heed=lambda: None)      # returns when all samples are answered, by whomever

No process distributes blocks: the holder of the lease of a block's file has the block, and the end of a process
releases it. So workers of one job, of several jobs, and a process that was started by hand share the work alike. A
prediction that was killed as a whole goes on from the blocks that have records.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import socket
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, final

import numpy as np

from farandole.data.loading.batches import Batches
from farandole.errors import UsageError
from farandole.inference.draws import Draw
from farandole.inference.outputs import Array, PredictionOutput
from farandole.inference.plan import BlockPlan
from farandole.inference.records import Answer, Backoff, awaited, leased

Heed = Callable[[], None]
"""Function that is called between blocks; raises if this worker is to leave."""

ONLY = "prediction"
"""Field of an answer that is a single array."""


@final
class Work:
    """Work of one prediction, with a copy in each worker.

    ``threads`` read samples ahead within a block. A NumPy array is sliced into batches instead.
    """

    def __init__(
        self, plan: BlockPlan, output: PredictionOutput, fn: Callable[..., Any], data: Any, threads: int
    ) -> None:
        self._plan, self._output, self._fn, self._data, self._threads = plan, output, fn, data, threads
        self._draws = takes_draw(fn)

    def answer_all(self, rank: int, size: int, heed: Heed) -> int:
        """Return when every block has its record, and the output is complete; return the number of own blocks.

        Raises the exceptions of the function; its block is then free again, as if never begun.
        """
        self._output.prepare()
        left, done = dict.fromkeys(self._plan.order(rank, size)), 0
        wait = Backoff()
        with contextlib.closing(self._loader()) as loader:
            while left:
                before, holder = len(left), None
                for block in list(left):
                    try:
                        is_mine = self._answer(block, loader, heed)
                    except BlockingIOError as error:
                        holder = error
                        continue
                    del left[block]
                    done += is_mine
                    if is_mine and left:  # not after the last block: others may have ended, which is no reason to leave
                        heed()
                if len(left) < before:
                    wait = Backoff()
                else:
                    heed()
                    wait(holder)
        self._finish(heed)
        return done

    def _answer(self, block: int, loader: Batches, heed: Heed) -> bool:
        """Answer a block; false if it was answered before. Raises ``BlockingIOError`` while another process has it."""
        begun_s = time.monotonic()
        with leased(self._output.folder / f"block-{block:06d}") as lease:
            if lease.read(Answer) is not None:
                return False
            rows = self._compute(block, loader)
            self._output.write(block, rows, heed)
            digests = {name: digest(each) for name, each in rows.items()}
            lease.write(Answer(digests, socket.gethostname(), os.getpid(), time.monotonic() - begun_s))
        return True

    def _compute(self, block: int, loader: Batches) -> dict[str, Array]:
        parts: list[dict[str, Array]] = []
        batches = self._plan.batches(block)
        with contextlib.closing(self._read(batches, loader)) as contents:
            for samples, content in zip(batches, contents, strict=True):
                draw = {"draw": Draw(self._plan.seed, samples)} if self._draws else {}
                parts.append(_named(self._fn(content, **draw), len(samples)))
        if any(part.keys() != parts[0].keys() for part in parts):
            raise UsageError(f"the fields of the answers to samples {self._plan.rows(block)} are not always the same")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _read(self, batches: list[range], loader: Batches) -> Generator[Any, None, None]:
        if isinstance(self._data, np.ndarray):
            yield from (self._data[each.start : each.stop] for each in batches)
            return
        with contextlib.closing(loader.load(batches)) as loaded:
            yield from loaded

    def _loader(self) -> Batches:
        return Batches(self._data, self._plan.batch_size, shuffle=False, threads=self._threads)

    def _finish(self, heed: Heed) -> None:
        """Complete the output, unless another worker has."""
        with awaited(self._output.folder / "finished", heed) as lease:
            if lease.read(BlockPlan) is None:
                self._output.finish()
                lease.write(self._plan)
            self._output.tidy()


def takes_draw(fn: Callable[..., Any]) -> bool:
    """True if a function has a parameter ``draw``, for random numbers."""
    try:
        return "draw" in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # built in
        return False


def digest(rows: Array) -> str:
    """Digest of rows of a field, in hexadecimal."""
    return hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=16).hexdigest()


def as_numpy(array: Any) -> Array:
    """An array of any framework as a NumPy array."""
    return np.asarray(array.detach().cpu().numpy() if hasattr(array, "detach") else array)


def _named(answer: Any, rows: int) -> dict[str, Array]:
    """Arrays of an answer by field, copied because a function may return its input."""
    if hasattr(answer, "_asdict"):
        answer = answer._asdict()
    if isinstance(answer, tuple | list):
        raise UsageError(
            f"the function has returned a {type(answer).__name__} of {len(answer)}: return an array, or a dict of "
            'arrays by name, as in {"mean": mean, "variance": variance}'
        )
    named = answer if isinstance(answer, Mapping) else {ONLY: answer}
    found = {str(name): np.array(as_numpy(each)) for name, each in named.items()}
    for name, each in found.items():
        if each.shape[:1] != (rows,):
            raise UsageError(f"the answer {name!r} to {rows} samples has shape {each.shape}: it needs a row for each")
    return found
