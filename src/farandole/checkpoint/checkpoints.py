"""The checkpoints of a job: written while training goes on, by one rank or by all."""

# Two threads: the one that calls the methods, and the one that writes the last checkpoint, which ``save`` joins before
# it starts the next. What is written is a copy. A signal handler may save on top of any line of ``save`` and ``wait``.
# So there may be a writing thread more, which the caller below it does not know of: ``_turn`` lets one write at a time,
# and is never taken by callers, who may be on top of each other. ``_writers`` and ``_unsaid`` change by methods of
# ``set`` and ``list`` that no handler interrupts. A thread that is in ``_writers`` has been started, and may be joined:
# it enters itself, and ``save`` does, since it returns perhaps before that.
#
# Where all ranks write, their writing threads meet in three all-gathers, beside the collectives of the training; names
# tell them apart, and from those of checkpoints in other folders. In the first, all say what they are about to save:
# nothing is written where they differ. Rank 0 tells the folder that all write to, which is of this save alone: another
# job, or a step that is saved twice, must not write into it. Everything that can fail on one rank is caught before each
# and travels in it, also what the caller of ``save`` raises, as the others would wait for a rank that raises. Between
# the last two, when the files of all are on the disk, rank 0 gives the checkpoint its name; after the last all know
# whether it has one. A gather that is aborted tells a rank nothing of the others. So then rank 0 alone removes the
# folder, where it is not giving it its name: removal goes on in a folder that is renamed meanwhile, and would empty the
# newest checkpoint. Where rank 0 is gone, the folder is left to a later save (``is_abandoned``).

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
from farandole.checkpoint.agreement import WriterProposal, differing_offers, differing_outlines, digest_of
from farandole.checkpoint.codec import Codec, share_out, take_apart
from farandole.checkpoint.folder import CheckpointManifest, ShardFile, Unrestorable
from farandole.checkpoint.restoring import TENSORS, TREE, Restored, RestorePoint
from farandole.checkpoint.writer import Save, Writer
from farandole.errors import AbortError, CheckpointError, UsageError
from farandole.events import logger
from farandole.runtime.lanes import thread_joins
from farandole.runtime.session import init
from farandole.runtime.session.session import Session
from farandole.version import __version__

OnError: TypeAlias = Literal["raise", "warn"]
R = TypeVar("R")

_saving: weakref.WeakKeyDictionary[Session, dict[str, list[threading.Lock]]] = weakref.WeakKeyDictionary()
"""Those whose ranks all write, by the name of their folder and in the order of their first saves, by their locks."""

REMEDIES = {
    errno.ENOSPC: "free some space, or keep fewer checkpoints: keep=",
    errno.EDQUOT: "your quota is used up: remove something, or keep fewer checkpoints: keep=",
    errno.EROFS: "it cannot be written to: give another folder",
    errno.ENOTDIR: "a file has that name: give another folder",
    errno.EACCES: "you may not write there: give another folder",
}


@final
class Checkpoints:
    """The checkpoints in ``root``, a folder that is made if need be.

    >>> with Checkpoints("runs/a", codec, keep=3) as checkpoints:
    ...     found = checkpoints.restore()
    ...     for step in range(found.step + 1 if found else 0, steps):
    ...         train()
    ...         checkpoints.save(step, {"model": model.state_dict()})

    Every rank makes one and calls the same methods. Rank 0 writes all, to a folder that need not be seen elsewhere;
    with ``sharded`` each rank writes its share of the tensors, to a folder that all see (state that is the same on all
    ranks, as in data-parallel training). What was saved by any number of ranks is restored by any other number.
    ``keep`` is how many stay (0: all). ``on_error="warn"`` logs what goes wrong in writing (no space, no right) and
    lets the training go on; ``"raise"`` raises ``CheckpointError`` at the next call. Works without ``init()`` as well.
    It is logged at once in both cases, and a process that ends without ``close`` waits for its last checkpoint.
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
        self._back_to: int | None = None  # the step that was restored by its number, until the next is written
        self._has_warned = False

    def save(self, step: int, state: Any) -> None:
        """Write ``state`` in the background: nested dicts, lists and tuples of tensors and plain values.

        >>> checkpoints.save(1200, {"model": model.state_dict(), "epoch": 3})

        ``step`` is a whole number from 0 on. Returns when the state has been copied; it may change then. Waits for the
        checkpoint before this one. Raises ``UsageError`` for objects that are none of these, on every rank that saves
        them, and ``CheckpointError`` for what went wrong with the last one: this one is written all the same.
        """
        self._join()
        writer = Writer.here(self._sharded)
        before = list(self._unsaid)  # and not what goes wrong with this one, which a later call raises
        if writer.rank < writer.writers and not writer.is_outside:
            self._begin(step, state, writer)
        else:  # others write it, and leave the branch of later steps if need be: this one never does
            self._require_kept(step, state)
            self._back_to = None
        for each in before:
            self._raise(each)

    def _begin(self, step: int, state: Any, writer: Writer) -> None:
        back_to, name = self._back_to, self._gathers(writer)
        try:
            save = self._copied(_whole_number(step), state, writer, name)
        except BaseException as error:
            if writer.writers > 1:  # the others wait for its word
                self._start(Save(step, writer, name, back_to, wrong=f"{type(error).__name__}: {error}"))
            raise
        self._back_to = None
        self._start(save)

    def _require_kept(self, step: int, state: Any) -> None:
        """Raise what the ranks that write it raise: a script may go on, and must not do so on some ranks alone."""
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
        # No daemon: the interpreter joins it before ``atexit``, and so before the session leaves the job.
        thread = threading.Thread(target=self._write, args=(save,), name="farandole-checkpoint")
        if save.writer.writers > 1:  # its all-gather needs the session, and the others need it to come to that
            init.finish_before_leaving(thread)
        thread.start()
        self._writers.add(thread)

    def _gathers(self, writer: Writer) -> str:
        """Name of the gathers of this one: it is the n-th that saves in this session to a folder of that name.

        Not of the whole path: hosts may see the folder at different ones. Nor of the step: ranks that save different
        ones have to meet, to learn of it.
        """
        if writer.writers == 1:
            return ""
        order = _saving.setdefault(init.current(), {}).setdefault(self.root.name, [])
        if self._turn not in order:
            order.append(self._turn)
        return f"checkpoint.{self.root.name}.{order.index(self._turn)}"

    def wait(self) -> None:
        """Return when what was saved is on the disk, or raise ``CheckpointError`` on every writer: why it is not."""
        self._join()
        for each in list(self._unsaid):
            self._raise(each)

    def _join(self) -> None:
        # Asked anew, as a handler may save on top of any of these lines. If its exception interrupts the join, the next
        # call joins again.
        while self._writers:
            for thread in list(self._writers):
                thread_joins.join(thread)
                self._writers.discard(thread)

    def restore(self, step: int | None = None) -> Restored | None:
        """The newest checkpoint that is whole, or that of ``step``; ``None`` if there is none. All ranks get the same.

        A worker that is to join others in an elastic job gets ``None`` as well: it gets the state from them.

        >>> found = checkpoints.restore()
        >>> if found is not None:
        ...     model.load_state_dict(found.state["model"])

        What is saved after ``restore(step)`` is newer than all that is there: checkpoints of later steps are moved to a
        folder ``later-than-…``, whole, before the first of a step that is not later still gets its name.

        Says which newer ones are torn, truncated, changed or foreign, in ``refused`` and in the log. Raises
        ``CheckpointError`` if ``step`` is asked for and not whole.
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
        """Wait for the last checkpoint, as ``wait`` does; the last thing to do."""
        self.wait()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:  # the error on its way says more than one of ours, which is in the log
            with contextlib.suppress(CheckpointError):
                self.close()

    def _raise(self, unsaid: tuple[CheckpointError, Writer]) -> None:
        """Raise what kept a checkpoint from the disk: the end of the generation as what it is, for ``elastic.run``."""
        try:
            self._unsaid.remove(unsaid)
        except ValueError:  # a handler has just raised it
            return
        failure, writer = unsaid
        if isinstance(failure.__cause__, AbortError) and init.is_initialized():
            if writer.generation == init.current().generation:
                raise AbortError(str(failure)) from failure
            return  # the job has gone on since
        raise failure

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(self, save: Save) -> None:
        self._writers.add(threading.current_thread())
        try:
            with self._turn:
                self._write_all(save)
        except BaseException as error:  # of this thread nobody would hear it
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
                if save.writer.rank == 0:  # and no other rank: this one may be giving the folder its name meanwhile
                    folder.discard(writing)
                raise
            if wrong:
                folder.discard(writing)  # now nobody is at it any more
                raise CheckpointError("; ".join(wrong))

    def _agreed_mark(self, save: Save, own: str) -> str:
        """Mark of rank 0, if all ranks are about to save the same; else all raise what differs."""
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
        """Write the files of all ranks, and name their folder; in words what kept any rank from that, on all ranks."""
        # Nothing here may raise before the last gather: the others would wait there for this rank.
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
        """Return what ``write`` returns, or in words what kept this rank from it."""
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
        # Older ones go only when the new name would survive a power failure.
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
        """The checkpoint that rank 0 finds. Raises what kept this rank from writing its last one."""
        self.wait()
        if writer.rank > 0:
            return None
        try:
            return restoring.settled(self.root, step)
        except OSError as error:
            name = error.filename or self.root
            raise CheckpointError(f"{writer.name} cannot read {name}: {error.strerror}{_remedy(error)}") from error

    def _read(self, point: RestorePoint, writer: Writer) -> Any:
        """Read the files of each rank's own folder if all have the very same; else those of rank 0 alone."""
        state, wrong, own = None, "", folder.writer_of(self.root, point.step or 0)
        try:
            state = restoring.read(self.root, point, self._codec)
        except Unrestorable as reason:
            wrong = f"{writer.name} cannot use {own}: {reason}"
        wrongs = writer.everybody(wrong)
        if wrongs[0]:
            raise CheckpointError("; ".join(filter(None, wrongs)))
        if wrong and own.exists():  # and not of a rank that does not see the folder of rank 0
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
