"""The checkpoints of a job: written while training goes on, by one rank or by all."""

# Two threads: the thread that calls the methods, and the thread that writes the last checkpoint, which ``save`` joins
# before it starts the next. The written state is a copy. A signal handler may call ``save`` on top of any line of
# ``save`` and ``wait``. So there may be one more writing thread, unknown to the interrupted call: the lock ``_turn``
# lets one thread write at a time. Callers never take it, because one may have interrupted another. ``_writers`` and
# ``_unsaid`` change by methods of ``set`` and ``list`` that no handler interrupts. A thread in ``_writers`` has been
# started, and may be joined: the thread adds itself, and ``save`` adds it, because ``save`` may return before that.
#
# If all ranks write, their writing threads meet in three all-gathers, beside the collectives of the training, with
# names that no other gathers have. In the first all-gather, all ranks send what they will save: if they differ, nothing
# is written. Rank 0 sends the folder for all files, which belongs to this save alone: another job, or a second save of
# the step, must not write into it. Every error on one rank is caught before each all-gather and sent in it, even an
# error that the caller of ``save`` raises, because other ranks would wait for a rank that raises. Between the last two
# all-gathers, when all files are on the disk, rank 0 gives the checkpoint its name; after the last, all ranks know
# whether it has its name. An aborted all-gather tells a rank nothing of the others. Then only rank 0 removes the
# folder, if it is not renaming it: a removal goes on in a folder that is renamed meanwhile, and would empty the newest
# checkpoint. If rank 0 has exited, a later save removes the folder (``is_abandoned``).

from __future__ import annotations

import contextlib
import errno
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, TypeAlias, TypeVar, final

from farandole.checkpoint import folder, restoring
from farandole.checkpoint.codec import Codec, share_out, take_apart
from farandole.checkpoint.folder import CheckpointManifest, ShardFile, Unrestorable
from farandole.checkpoint.restoring import TENSORS, TREE, Restored, RestorePoint
from farandole.checkpoint.writer import Save, Writer, WriterProposal, differing_offers, differing_outlines, digest_of
from farandole.errors import AbortError, CheckpointError, UsageError
from farandole.events import logger
from farandole.runtime.lanes import thread_joins
from farandole.runtime.session import init
from farandole.runtime.session.session import Session
from farandole.version import __version__

OnError: TypeAlias = Literal["raise", "warn"]
R = TypeVar("R")

_saving: weakref.WeakKeyDictionary[Session, dict[str, list[threading.Lock]]] = weakref.WeakKeyDictionary()
"""Locks of the ``Checkpoints`` that all ranks write, by session and folder name, in the order of their first saves."""

REMEDIES = {
    errno.ENOSPC: "free some space, or keep fewer checkpoints: keep=",
    errno.EDQUOT: "your quota is used up: remove something, or keep fewer checkpoints: keep=",
    errno.EROFS: "it cannot be written to: give another folder",
    errno.ENOTDIR: "a file has that name: give another folder",
    errno.EACCES: "you may not write there: give another folder",
}


@final
class Checkpoints:
    """Checkpoints in the folder ``root``, which is created if needed.

    >>> with Checkpoints("runs/a", codec, keep=3) as checkpoints:
    ...     found = checkpoints.restore()
    ...     for step in range(found.step + 1 if found else 0, steps):
    ...         train()
    ...         checkpoints.save(step, {"model": model.state_dict()})

    Every rank creates this object and calls the same methods. Rank 0 writes everything, to a folder that only rank 0
    must see; with ``sharded`` each rank writes its share of the tensors, to a folder that all ranks see (for state that
    is equal on all ranks, as in data-parallel training). Any number of ranks can restore a checkpoint. ``keep``: number
    of checkpoints to keep (0: all). ``on_error="warn"`` logs errors in writing (no space, no permission), and training
    goes on; ``"raise"`` raises ``CheckpointError`` at the next call, and logs the error at once, too. Works without
    ``init()`` as well. A process that exits without ``close`` waits for its last checkpoint.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        codec: Codec,
        *,
        keep: int = 3,
        sharded: bool = False,
        on_error: OnError = "raise",
    ) -> None:
        if keep < 0:
            raise UsageError(f"keep={keep}: give how many checkpoints stay, or 0 for all")
        if on_error not in ("raise", "warn"):
            raise UsageError(f"on_error={on_error!r}: use 'raise' or 'warn'")
        self.root = Path(root)
        self._codec, self._keep, self._sharded, self._on_error = codec, keep, sharded, on_error
        self._writers: set[threading.Thread] = set()
        self._turn = threading.Lock()
        self._unsaid: list[tuple[CheckpointError, Writer]] = []
        self._back_to: int | None = None  # step of the last ``restore(step)``, until the next write
        self._has_warned = False

    def save(self, step: int, state: Any) -> None:
        """Write ``state`` in the background: nested dicts, lists and tuples of tensors and plain values.

        >>> checkpoints.save(1200, {"model": model.state_dict(), "epoch": 3})

        ``step`` is an integer from 0 on. Returns when the state has been copied, and may change again. Waits for the
        previous checkpoint. Raises ``UsageError`` for other objects in ``state``, on every rank that has them, and
        ``CheckpointError`` if the previous checkpoint failed: the new checkpoint is written nevertheless.
        """
        self._join()
        writer = Writer.here(self._sharded)
        before = list(self._unsaid)  # not errors of the new checkpoint, which a later call raises
        if writer.rank < writer.writers and not writer.is_outside:
            self._begin(step, state, writer)
        else:  # other ranks write it, and move later steps away if needed: this rank never does
            self._require_kept(step, state)
            self._back_to = None
        for each in before:
            self._raise(each)

    def _begin(self, step: int, state: Any, writer: Writer) -> None:
        back_to, name = self._back_to, self._gathers(writer)
        try:
            save = self._copied(_whole_number(step), state, writer, name)
        except BaseException as error:
            if writer.writers > 1:  # the other writers wait for its proposal
                self._start(Save(step, writer, name, back_to, wrong=f"{type(error).__name__}: {error}"))
            raise
        self._back_to = None
        self._start(save)

    def _require_kept(self, step: int, state: Any) -> None:
        """Raise the same errors as the ranks that write: a script that catches them must do so on all ranks."""
        _whole_number(step)
        for tensor in take_apart(state, self._codec.adapter)[1].values():
            self._codec.adapter.require_kept(tensor)

    def _copied(self, step: int, state: Any, writer: Writer, name: str) -> Save:
        """Copy what this rank writes: training may change the tensors as soon as ``save`` returns."""
        adapter = self._codec.adapter
        tree, tensors = take_apart(state, adapter)
        content: dict[str, Any] = {TREE: tree} if writer.rank == 0 else {}
        if writer.writers == 1:
            owned, outline = list(tensors), {}
        else:
            specs = {path: adapter.spec(tensor) for path, tensor in tensors.items()}
            owned = share_out({path: spec.nbytes for path, spec in specs.items()}, writer.writers)[writer.rank]
            outline = {path: f"{spec.dtype}{list(spec.shape)}" for path, spec in specs.items()}
        content[TENSORS] = {path: adapter.host_copy(tensors[path]) for path in owned}
        return Save(step, writer, name, self._back_to, content, outline)

    def _start(self, save: Save) -> None:
        # Not a daemon thread: the interpreter joins it before ``atexit``, and so before the session leaves the job.
        thread = threading.Thread(target=self._write, args=(save,), name="farandole-checkpoint")
        if save.writer.writers > 1:  # its all-gathers need the session, and the other ranks wait in them
            init.finish_before_leaving(thread)
        thread.start()
        self._writers.add(thread)

    def _gathers(self, writer: Writer) -> str:
        """Name of the gathers: the folder's name, and the number of this object among those with such a folder.

        Not the whole path: hosts may see the folder at different paths. Not the step: ranks that save different steps
        must meet to find this out.
        """
        if writer.writers == 1:
            return ""
        order = _saving.setdefault(init.current(), {}).setdefault(self.root.name, [])
        if self._turn not in order:
            order.append(self._turn)
        return f"checkpoint.{self.root.name}.{order.index(self._turn)}"

    def wait(self) -> None:
        """Wait until all saves are on the disk; raises ``CheckpointError`` on every writer if a save failed."""
        self._join()
        for each in list(self._unsaid):
            self._raise(each)

    def _join(self) -> None:
        # A loop, because a handler may call ``save`` on top of any of these lines. If its exception interrupts the
        # join, the next call joins again.
        while self._writers:
            for thread in list(self._writers):
                thread_joins.join(thread)
                self._writers.discard(thread)

    def restore(self, step: int | None = None) -> Restored | None:
        """Restore the newest whole checkpoint, or that of ``step``; ``None`` if there is none. All ranks get the same.

        A worker that is about to join an elastic job gets ``None`` as well: the members send it their state.

        >>> found = checkpoints.restore()
        >>> if found is not None:
        ...     model.load_state_dict(found.state["model"])

        A save after ``restore(step)`` replaces the later checkpoints: they are moved, whole, to a folder
        ``later-than-…``, before the first checkpoint gets its name whose step is not later than all of them.

        Newer checkpoints that are torn, truncated, changed or foreign are listed in ``refused`` and in the log. Raises
        ``CheckpointError`` if a ``step`` is given and its checkpoint is not whole.
        """
        step = None if step is None else _whole_number(step)
        self._join()
        writer = Writer.here(self._sharded)
        if writer.is_outside:
            self.wait()
            return None
        point = writer.agree(writer.together(lambda: self._choose(step, writer)))
        if writer.rank == 0:
            for text in point.refused:
                logger.warning("checkpoint: %s", text)
        if point.step is None:
            if step is not None:
                raise CheckpointError("; ".join(point.refused))
            return None
        state = self._read(point, writer)
        self._back_to = step
        return Restored(point.step, state, point.refused)

    def close(self) -> None:
        """Wait for the last checkpoint, as ``wait`` does; call no method after it."""
        self.wait()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:  # the current error matters more than a failed checkpoint, which is in the log
            with contextlib.suppress(CheckpointError):
                self.close()

    def _raise(self, unsaid: tuple[CheckpointError, Writer]) -> None:
        """Raise why a checkpoint was not written; for ``elastic.run``, the end of a generation as ``AbortError``."""
        try:
            self._unsaid.remove(unsaid)
        except ValueError:  # a handler has just raised it
            return
        failure, writer = unsaid
        if isinstance(failure.__cause__, AbortError) and init.is_initialized():
            if writer.generation == init.current().generation:
                raise AbortError(str(failure)) from failure
            return  # the job is in a later generation now
        raise failure

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(self, save: Save) -> None:
        self._writers.add(threading.current_thread())
        try:
            with self._turn:
                self._write_all(save)
        except BaseException as error:  # an exception of this thread would be lost
            failure = CheckpointError(f"the checkpoint of step {save.step} in {self.root} was not written: {error}")
            failure.__cause__ = error
            self._back_to = save.back_to
            if self._on_error == "raise":
                self._unsaid.append((failure, save.writer))
                logger.error("%s", failure)  # at once: the process may end before a call can raise it
            else:
                logger.warning("%s; training goes on", failure)

    def _write_all(self, save: Save) -> None:
        own = folder.new_mark()
        with folder.in_flight(own):
            writing = folder.writing(self.root, save.step, self._agreed_mark(save, own))
            try:
                wrong = self._write_together(save, writing)
            except BaseException:
                if save.writer.rank == 0:  # no other rank: rank 0 may be renaming the folder meanwhile
                    folder.discard(writing)
                raise
            if wrong:
                folder.discard(writing)  # no rank writes to it any more
                raise CheckpointError("; ".join(wrong))

    def _agreed_mark(self, save: Save, own: str) -> str:
        """Mark of rank 0, if all ranks will save the same; else all ranks raise the difference."""
        writer, digest = save.writer, digest_of(save.outline)
        offers: list[WriterProposal] = writer.gather(
            WriterProposal(writer.name, own, save.step, digest, save.wrong), f"{save.gathers}.offer"
        )
        wrong = differing_offers(offers)
        if not wrong and any(each.digest != digest for each in offers):
            outlines = writer.gather(save.outline, f"{save.gathers}.outline")
            wrong = differing_outlines([each.rank for each in offers], outlines)
        if wrong:
            raise CheckpointError(wrong)
        return offers[0].mark

    def _write_together(self, save: Save, writing: Path) -> list[str]:
        """Write the files of all ranks, and rename their folder; returns the errors of all ranks, on all ranks."""
        # Nothing here may raise before the last gather: other ranks would wait there for this rank.
        writer = save.writer
        said = self._try(lambda: self._write_share(writing, save.content, writer), writing, writer)
        shards = writer.gather(said, f"{save.gathers}.written")
        if wrong := [each for each in shards if isinstance(each, str)]:
            return wrong
        whole = [each for each in shards if isinstance(each, ShardFile)]
        is_first = writer.rank == 0
        named = self._try(lambda: self._finish(writing, save, whole), writing, writer) if is_first else None
        return [each for each in writer.gather(named, f"{save.gathers}.named") if isinstance(each, str)]

    def _try(self, write: Callable[[], R], writing: Path, writer: Writer) -> R | str:
        """Return the result of ``write``, or a text on the error of this rank."""
        try:
            return write()
        except OSError as error:
            return f"{writer.name} says of {error.filename or writing}: {error.strerror}{_remedy(error)}"
        except folder.IncompleteError as error:
            return f"{writer.name} does not see all of {writing}: {error}: all ranks have to see one folder"
        except BaseException as error:  # of the framework, or a SystemExit, which threads swallow
            return f"{writer.name} cannot write {writing}: {type(error).__name__}: {error}"

    def _finish(self, writing: Path, save: Save, whole: list[ShardFile]) -> None:
        folder.finish(writing, CheckpointManifest(save.step, whole, __version__), save.back_to)
        # Older checkpoints are removed only when the new name would survive a power failure.
        folder.retain(self.root, self._keep, save.step)
        latest = max(folder.steps(self.root), default=save.step)
        if latest > save.step and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "checkpoint: step %d was written, and %s has a checkpoint of step %d already: restore() takes the "
                "latest step that is whole; go back by restore(step=...), or give each training a folder of its own",
                save.step, self.root, latest,
            )  # fmt: skip

    def _write_share(self, writing: Path, content: dict[str, Any], writer: Writer) -> ShardFile:
        if writer.rank == 0:
            for left in folder.unfinished(self.root):
                if folder.is_abandoned(left, time.time()):
                    folder.discard(left)
        return self._write_shard(writing, content, writer)

    def _write_shard(self, writing: Path, content: dict[str, Any], writer: Writer) -> ShardFile:
        writing.mkdir(mode=0o700, parents=True, exist_ok=True)

        def dump(file: BinaryIO) -> None:
            self._codec.dump(content, file)

        return folder.write_shard(writing, f"shard-{writer.rank}-of-{writer.writers}", dump, writer.name)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _choose(self, step: int | None, writer: Writer) -> RestorePoint | None:
        """The checkpoint that rank 0 finds, ``None`` on others. Raises the error of this rank's last checkpoint."""
        self.wait()
        if writer.rank > 0:
            return None
        try:
            return restoring.settled(self.root, step)
        except OSError as error:
            name = error.filename or self.root
            raise CheckpointError(f"{writer.name} cannot read {name}: {error.strerror}{_remedy(error)}") from error

    def _read(self, point: RestorePoint, writer: Writer) -> Any:
        """Read the files in each rank's own folder if all ranks have the same files; else rank 0 reads for all."""
        state, wrong, own = None, "", folder.folder_of(self.root, point.step or 0)
        try:
            state = restoring.read(self.root, point, self._codec)
        except Unrestorable as reason:
            wrong = f"{writer.name} cannot use {own}: {reason}"
        wrongs = writer.everybody(wrong)
        if wrongs[0]:
            raise CheckpointError("; ".join(filter(None, wrongs)))
        if wrong and own.exists():  # no warning on a rank that does not see the folder of rank 0
            logger.warning("checkpoint: %s; what rank 0 has is used", wrong)
        return writer.agree(state) if any(wrongs) else state


def _whole_number(step: Any) -> int:
    with contextlib.suppress(TypeError):
        if (number := operator.index(step)) >= 0:
            return number
    raise UsageError(f"step={step!r}: give a whole number, 0 or more")


def _remedy(error: OSError) -> str:
    text = REMEDIES.get(error.errno or 0)
    return f" ({text})" if text else ""
