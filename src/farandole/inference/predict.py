"""``predict``: a trained model's function on every sample of a data set, by workers that may join, leave or die."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, final

import cloudpickle

from farandole.elastic.worker.run import run as elastic_run
from farandole.elastic.worker.state import ObjectState
from farandole.errors import AbortError, DataError, HostsUpdatedInterrupt, UsageError
from farandole.inference.outputs import PredictionOutput, output_for
from farandole.inference.plan import BlockPlan
from farandole.inference.records import Answer, awaited, read_record
from farandole.inference.worker import Work, digest
from farandole.launch.function.function import run as run_function
from farandole.runtime.session.init import current, init, is_initialized


@final
class Predictions(Mapping[str, Any]):
    """Answers by field, each an array of all samples in order, read when it is sliced.

    found = opened("out.zarr")
    found["mean"][10:20]                        # a numpy.memmap, zarr.Array or h5py.Dataset is behind it
    """

    def __init__(self, out: PredictionOutput) -> None:
        self._output = out

    @property
    def path(self) -> Path:
        """Folder or file of the output."""
        return self._output.path

    @property
    def plan(self) -> BlockPlan:
        """Plan of the prediction."""
        return self._output.plan

    def __getitem__(self, name: str) -> Any:
        if name not in self._output.fields:
            raise KeyError(f"{self.path} has the fields {', '.join(self._output.fields)}, and not {name!r}")
        return self._output.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._output.fields)

    def __len__(self) -> int:
        return len(self._output.fields)

    def __repr__(self) -> str:
        """Short description."""
        return f"<predictions of {self.plan.samples} samples in {self.path}: {', '.join(self)}>"

    def answers(self) -> list[Answer]:
        """Records of the blocks, in order: the process that computed each block, and its seconds."""
        files = [self._output.folder / f"block-{block:06d}" for block in range(self.plan.blocks)]
        return [found for each in files if (found := read_record(each, Answer)) is not None]

    def verify(self) -> None:
        """Compare the stored rows with the digests of the computed rows; raises ``DataError`` if they differ."""
        wrong = [
            (block, name)
            for block, answer in enumerate(self.answers())
            for name, expected in answer.digests.items()
            if digest(self[name][self.plan.rows(block).start : self.plan.rows(block).stop]) != expected
        ]
        if wrong:
            block, name = wrong[0]
            raise DataError(
                f"{self.path}: {name!r} of samples {self.plan.rows(block)} is not what was computed, nor are "
                f"{len(wrong) - 1} others: remove block-{block:06d} and finished from {self._output.folder}, and call "
                "predict() again; of an HDF5 file remove all of that folder"
            )


def opened(path: str | os.PathLike[str]) -> Predictions:
    """Open existing predictions.

        opened("out.zarr")["prediction"][:10]

    Raises ``DataError`` if there are none, or if they are incomplete, with the number of answered samples.
    """
    where = Path(path)
    plan = read_record(where.with_name(f"{where.name}.blocks") / "plan.json", BlockPlan)
    if plan is None:
        raise DataError(f"there are no predictions at {where}: farandole.inference.predict(..., output=...) makes them")
    found = Predictions(output_for(where, plan))
    if not found._output.is_finished:
        done = sum(
            len(plan.rows(block))
            for block in range(plan.blocks)
            if read_record(found._output.folder / f"block-{block:06d}", Answer) is not None
        )
        raise DataError(
            f"{where} has answers to {done} of {plan.samples} samples: repeat the call that began it to continue"
        )
    return found


def predict(
    fn: Callable[..., Any],
    data: Any,
    output: str | os.PathLike[str],
    *,
    workers: int | None = None,
    batch_size: int = 64,
    block_batches: int = 8,
    seed: int = 0,
    key: str = "",
    threads: int = 4,
    **knobs: Any,
) -> Predictions:
    """Call ``fn`` on every sample of ``data``, on ``workers``, and return the answers, which are stored in ``output``.

        found = predict(model, farandole.data.hdf5("set", keys="x"), "out.zarr", workers=8, batch_size=256)
        found["prediction"][:10]

    ``data`` is an array, a source of ``farandole.data``, or anything that ``Batches`` takes. ``fn(batch)`` gets batches
    of ``batch_size`` (NumPy; the last one may be smaller) and returns an array with a row for each sample, or a dict of
    such arrays. A function with a parameter ``draw`` is called as ``fn(batch, draw)``, with random numbers: see
    ``Draw``. The ``output`` is ``NAME.zarr``, ``NAME.h5``, or a folder of ``.npy`` files.

    ``block_batches`` batches are a block: one worker computes it, and writes it when it is complete. After a kill the
    same call goes on: it computes no block that has its record, and begins unfinished blocks anew. A worker that dies
    is replaced, while the others go on. More processes may start on the same ``output`` at any time, and share the
    work. The bits do not depend on the workers, if ``fn`` returns the same for the same batch and draw; libraries do so
    on machines of one kind, with the same number of threads.

    Without ``workers`` this process computes; in a job (after ``hvd.init()``) all ranks call ``predict`` and compute
    together, also in an elastic job; there it must not be called inside of a function of ``hvd.elastic.run``. ``knobs``
    are arguments of ``farandole.run``, such as ``hosts=``. ``key`` names the model, by its digest for instance.

    Raises ``UsageError`` if ``output`` was begun with another plan or ``key``. An exception of ``fn`` is raised here,
    from workers as ``RemoteError``; the answers until then stay.
    """
    plan = BlockPlan(len(data), batch_size, block_batches, seed, key).check()
    out = output_for(Path(output), plan)
    is_member = is_initialized()
    if is_member and workers is not None:
        raise UsageError(f"predict(workers={workers}) in a job: its ranks are the workers; leave workers= out")
    if (workers is None and knobs) or (workers is not None and workers < 1):
        raise UsageError(f"predict(workers={workers}, {', '.join(knobs)}): give workers= of at least 1")
    _keep(plan, out)
    if out.is_finished and not is_member:
        return Predictions(out)
    work = Work(plan, out, fn, data, threads)
    if workers is not None:
        knobs = {"np": workers, "min_np": 1, "max_np": workers, **knobs}
        run_function(partial(_member, cloudpickle.dumps(work)), **knobs)
    elif is_member:
        _together(work)
    else:
        work.answer_all(0, 1, lambda: None)
    return Predictions(out)


def _keep(plan: BlockPlan, out: PredictionOutput) -> None:
    """Store the plan, or compare it with the stored plan."""
    out.folder.mkdir(parents=True, exist_ok=True)
    with awaited(out.folder / "plan.json", lambda: None) as lease:
        found = lease.read(BlockPlan)
        if found is None:
            lease.write(plan)
        elif found != plan:
            raise UsageError(
                f"{out.path} was begun with {plan.differences(found)}: call predict() as it was then, name another "
                f"output, or remove both {out.path.name} and {out.folder.name} to begin anew"
            )
        elif out.is_finished and not out.path.exists():
            raise UsageError(
                f"{out.path} was finished, and no longer exists: remove {out.folder.name}, too, to begin anew"
            )


def _member(pickled: bytes) -> int:
    """Worker of an elastic job that ``predict`` has launched."""
    init()  # first: loading a framework and a model may exceed the deadline for ``init()``
    work: Work = pickle.loads(pickled)  # noqa: S301 (from the caller, over an authenticated channel)
    return _together(work)


def _together(work: Work) -> int:
    """Compute as a rank of this job; in an elastic job also in its later generations."""

    def answer(_: ObjectState) -> int:
        topology = current().topology
        return work.answer_all(topology.rank, topology.size, _heed)

    if current().settings.is_elastic:
        return elastic_run(answer)(ObjectState())
    topology = current().topology
    return work.answer_all(topology.rank, topology.size, lambda: None)  # the launcher handles the death of a rank


def _heed() -> None:
    """Leave the generation if it has ended, or a change is due: no collective here would raise for that."""
    session = current()
    if session.end.reason:
        raise AbortError(session.end.reason)
    if session.change_due:
        raise HostsUpdatedInterrupt
