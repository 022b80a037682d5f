"""The verbs of data-parallel training, once for all frameworks.

    verbs = Verbs(TorchAdapter())
    request = verbs.allreduce([tensor], "loss", Reduction(ReduceOp.AVERAGE), global_process_set)
    [mean] = request.run()

A framework has an ``Adapter`` for its tensors; names, checks, groups, in-place and asynchronous variants are here.
Every verb takes a list of tensors (a plain call is a group of one) and returns a ``Request``, to run now or to begin.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, final

from farandole.collective import Array, Kind, ReduceOp, Reduction
from farandole.errors import CollectiveError, UnsupportedError, UsageError
from farandole.runtime.collectives.adapter import Adapter
from farandole.runtime.collectives.divergence import broadcasts
from farandole.runtime.lanes.announcement import FastRequest
from farandole.runtime.lanes.call import Call, CallResult, Handle
from farandole.runtime.lanes.reduction import COMPLEX_REDUCTIONS, REDUCTIONS
from farandole.runtime.session.init import Session, current, takes_part
from farandole.runtime.session.process_sets import ProcessSet

T = TypeVar("T")
R = TypeVar("R")


@final
class Pending(Generic[R]):
    """A verb in flight on this rank."""

    __slots__ = ("_finish", "_handle")

    def __init__(self, handle: Handle | None, finish: Callable[[list[CallResult]], R]) -> None:
        self._handle, self._finish = handle, finish

    def done(self) -> bool:
        """True once ``wait`` would return or raise at once."""
        return self._handle is None or self._handle.done()

    def when_done(self, observer: Callable[[], None]) -> None:
        """Call ``observer`` once, when the verb is done: at once, or in another thread, which holds locks."""
        if self._handle is None:
            observer()
        else:
            self._handle.when_done(observer)

    def wait(self) -> R:
        """Block until it is done; returns its result, or raises the ``CollectiveError`` that ended it."""
        return self._finish([] if self._handle is None else self._handle.wait())


@final
class Request(Generic[R]):
    """A verb that is ready to run: ``run`` it in this thread, or ``begin`` it and do something else meanwhile."""

    __slots__ = ("_calls", "_finish", "_session")

    def __init__(self, session: Session, calls: list[Call], finish: Callable[[list[CallResult]], R]) -> None:
        self._session, self._calls, self._finish = session, calls, finish

    def run(self) -> R:
        """Run it and return its result. Faster than ``begin`` and ``wait``, because this thread does the work."""
        return self._submit(background=False).wait()

    def begin(self, progress_s: float = 0.0, fast: FastRequest | None = None) -> Pending[R]:
        """Announce it and return at once; a background thread executes it if no thread waits for it.

        ``progress_s``: seconds that this thread may wait for the other ranks on the peer lane, if that saves waking a
        thread. ``fast``: request of a compiled graph, whose later calls may run without Python.
        """
        return self._submit(background=True, progress_s=progress_s, fast=fast)

    def then(self, change: Callable[[R], Any]) -> Request[Any]:
        """The same, with ``change`` applied to its result."""
        finish = self._finish
        return Request(self._session, self._calls, lambda outcomes: change(finish(outcomes)))

    def _submit(self, background: bool, progress_s: float = 0.0, fast: FastRequest | None = None) -> Pending[R]:
        if not self._calls:
            return Pending(None, self._finish)
        try:
            return Pending(self._session.submit(self._calls, background, progress_s, fast), self._finish)
        except Exception as error:
            first = self._calls[0]
            _refuse(error, first.kind, first.name, first.process_set)
            raise


@final
class Verbs(Generic[T]):
    """The collectives of one framework, on lists of its tensors.

    All raise ``UsageError`` (a ``ValueError``) at once for invalid arguments on this rank, and the other ranks then
    raise ``MismatchError``; disagreement between ranks raises when the verb has run. ``name`` identifies a call across
    ranks; without a name, calls are matched by their order within their process set.

    ``target`` returns the tensor on which an in-place verb works, or raises; default: ``adapter.dense``. ``restored``
    makes the user's result from the given tensor and the dense tensor with the result.
    """

    def __init__(
        self,
        adapter: Adapter[T],
        target: Callable[[T], T] | None = None,
        restored: Callable[[T, T], T] | None = None,
    ) -> None:
        self._adapter, self._restored = adapter, restored
        self._target = target or adapter.dense

    def allreduce(
        self, tensors: Sequence[T], name: str | None, how: Reduction, process_set: ProcessSet, *, in_place: bool = False
    ) -> Request[list[T]]:
        """Combine the tensors of all members, elementwise; all get the result. Shapes and dtypes must be equal."""
        name = self._name(Kind.ALLREDUCE, name, process_set)
        with _Telling(Kind.ALLREDUCE, name, number_of(process_set)):
            work = [self._target(t) if in_place else self._adapter.clone(t) for t in tensors]
            arrays = [self._array(Kind.ALLREDUCE, t, how) for t in work]
            for i in _overlapping(arrays) if in_place and len(arrays) > 1 else ():  # reduced twice otherwise
                work[i] = self._adapter.clone(work[i])
                arrays[i] = self._adapter.array(work[i])
            calls = [
                Call(Kind.ALLREDUCE, each, array, self._adapter.shape(t), number_of(process_set), how)
                for each, array, t in zip(_group(name, len(work)), arrays, work, strict=True)
            ]
            return self._request(calls, lambda _: self._results(tensors, work, in_place))

    def reducescatter(
        self, tensors: Sequence[T], name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Request[list[T]]:
        """Combine like ``allreduce``, and keep this member's share of dimension 0; odd rows go to the first members."""
        name = self._name(Kind.REDUCESCATTER, name, process_set)
        with _Telling(Kind.REDUCESCATTER, name, number_of(process_set)):
            outputs = _Outputs(self._adapter)
            calls = [
                Call(
                    Kind.REDUCESCATTER,
                    each,
                    self._array(Kind.REDUCESCATTER, t, how),
                    self._rows("reducescatter", t),
                    number_of(process_set),
                    how,
                    allocate=outputs.reserve(t),
                )
                for each, t in zip(_group(name, len(tensors)), map(self._adapter.dense, tensors), strict=True)
            ]
            return self._request(calls, outputs.collect)

    def allgather(
        self, tensors: Sequence[T], name: str | None, process_set: ProcessSet
    ) -> Request[list[tuple[T, tuple[int, ...]]]]:
        """Concatenate along dimension 0, whose length may differ between members; a scalar counts as one row.

        Each result has the number of rows of each member with it.
        """
        name = self._name(Kind.ALLGATHER, name, process_set)
        with _Telling(Kind.ALLGATHER, name, number_of(process_set)):
            outputs = _Outputs(self._adapter)
            calls = [
                Call(
                    Kind.ALLGATHER,
                    each,
                    self._adapter.array(t),
                    self._adapter.shape(t) or (1,),
                    number_of(process_set),
                    allocate=outputs.reserve(t),
                )
                for each, t in zip(_group(name, len(tensors)), map(self._adapter.dense, tensors), strict=True)
            ]
            return self._request(
                calls, lambda done: [(t, o.received_splits) for t, o in zip(outputs.collect(done), done, strict=True)]
            )

    def broadcast(
        self, tensors: Sequence[T], root: int, name: str | None, process_set: ProcessSet, *, in_place: bool = False
    ) -> Request[list[T]]:
        """Copy the tensors of the global rank ``root`` to every member."""
        name = self._name(Kind.BROADCAST, name, process_set)
        broadcasts.begin(number_of(process_set))
        with _Telling(Kind.BROADCAST, name, number_of(process_set)):
            if root not in process_set.ranks:
                raise UsageError(
                    f"broadcast from root_rank={root!r}, but the process set holds the ranks {process_set.ranks}: "
                    "the root is a global rank among them"
                )
            work = [self._target(t) if in_place else self._adapter.clone(t) for t in tensors]
            calls = [
                Call(
                    Kind.BROADCAST,
                    each,
                    self._adapter.array(t),
                    self._adapter.shape(t),
                    number_of(process_set),
                    root=int(root),
                )
                for each, t in zip(_group(name, len(work)), work, strict=True)
            ]
            if not calls:  # ranks with tensors wait for this rank, and raise because of this call
                nothing = Array.of_numbers(array("q"))
                calls = [Call(Kind.BROADCAST, name, nothing, (0,), number_of(process_set), root=int(root))]
            return self._request(calls, lambda _: self._results(tensors, work, in_place))

    def alltoall(
        self, tensor: T, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet
    ) -> Request[tuple[T, tuple[int, ...]]]:
        """Send ``splits[i]`` rows to member ``i``, or equal parts; returns the received rows, and the number from each.

        If the rows of one member cannot be cut so, all members raise ``MismatchError``: the others would wait for it.
        """
        name = self._name(Kind.ALLTOALL, name, process_set)
        with _Telling(Kind.ALLTOALL, name, number_of(process_set)):
            dense = self._adapter.dense(tensor)
            shape = self._rows("alltoall", dense)
            outputs = _Outputs(self._adapter)
            call = Call(
                Kind.ALLTOALL,
                name,
                self._adapter.array(dense),
                shape,
                number_of(process_set),
                splits=_splits(splits),
                allocate=outputs.reserve(dense),
            )
            return self._request([call], lambda outcomes: (outputs.collect(outcomes)[0], outcomes[0].received_splits))

    def telling(self, kind: Kind, name: str | None, process_set: ProcessSet) -> _Telling:
        """Context for a framework's work before a verb: the other members raise an error from it in the verb."""
        _require_member(kind, process_set)
        wire_name = None if name is None else self._name(kind, name, process_set)
        return _Telling(kind, wire_name, number_of(process_set))

    def _request(self, calls: list[Call], finish: Callable[[list[CallResult]], R]) -> Request[R]:
        devices = {call.array.device for call in calls}
        if len(devices) > 1:
            raise UnsupportedError(
                f"the tensors of one group are on {' and '.join(sorted(devices))}: move them to one device, "
                "or reduce them in one group per device"
            )
        return Request(current(), calls, finish)

    def _name(self, kind: Kind, name: str | None, process_set: ProcessSet) -> str:
        """The name on the wire; verbs do not share names: a gradient and its broadcast may both be called ``w``."""
        _require_member(kind, process_set)
        if name is None:
            return current().name_unnamed(kind, number_of(process_set))
        text = f"{kind.label}.{name}"
        if not (text.isascii() or _is_text(text)):
            raise UsageError(
                f"{kind.label}: the name {name!r} has half of a surrogate pair, which no encoding of text can carry to "
                f"the other ranks: pass name={name.encode('ascii', 'backslashreplace').decode()!r}, or another one"
            )
        return text

    def _array(self, kind: Kind, tensor: T, how: Reduction) -> Array:
        array, op = self._adapter.array(tensor), how.checked().op
        legal = REDUCTIONS[kind]
        if array.dtype.is_complex:
            legal &= COMPLEX_REDUCTIONS
        if op is ReduceOp.ADASUM and not array.dtype.is_floating:
            legal -= {ReduceOp.ADASUM}
        if op not in legal:
            raise UnsupportedError(
                f"{kind.label} with op={op.label} of a {array.dtype.label} tensor: "
                f"use one of {', '.join(o.label for o in sorted(legal))}"
            )
        return array

    def _rows(self, verb: str, tensor: T) -> tuple[int, ...]:
        shape = self._adapter.shape(tensor)
        if not shape:
            raise UnsupportedError(
                f"{verb} cuts dimension 0, but the tensor is a scalar: give it at least one dimension"
            )
        return shape

    def _results(self, tensors: Sequence[T], work: list[T], in_place: bool) -> list[T]:
        """End a verb whose results have the shapes of the given tensors."""
        if in_place:
            return self._settle(tensors, work)
        if self._restored is None:
            return work
        return [self._restored(tensor, result) for tensor, result in zip(tensors, work, strict=True)]

    def _settle(self, tensors: Sequence[T], work: Sequence[T]) -> list[T]:
        """End an in-place verb: copy results from temporary tensors, and tell the framework that memory has changed."""
        for tensor, result in zip(tensors, work, strict=True):
            if tensor is result:
                self._adapter.written(tensor)
            else:
                self._adapter.assign(tensor, result)
        return list(tensors)


def _overlapping(arrays: Sequence[Array]) -> list[int]:
    """Indices of the ``arrays`` that overlap with an array before them in memory."""
    found, end = [], 0
    for begin, nbytes, i in sorted((each.address, each.nbytes, i) for i, each in enumerate(arrays) if each.count):
        if begin < end:
            found.append(i)
        end = max(end, begin + nbytes)
    return found


@final
class _Telling:
    """Context that sends the error that keeps this rank from a collective to the other members, which would wait."""

    __slots__ = ("_kind", "_name", "_process_set")

    def __init__(self, kind: Kind, name: str | None, process_set: int) -> None:
        self._kind, self._name, self._process_set = kind, name, process_set

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):
            _refuse(error, self._kind, self._name, self._process_set)


def _refuse(error: Exception, kind: Kind, name: str | None, process_set: int) -> None:
    """Send the error that keeps this rank from a collective to the other members, unless they know it already."""
    if not isinstance(error, CollectiveError):
        session = current()
        name = name or session.name_unnamed(kind, process_set)  # taken now, because the verb would have taken this name
        session.refuse(process_set, name, kind, error)


@final
class _Outputs(Generic[T]):
    """Output tensors, created when their shapes are known."""

    def __init__(self, adapter: Adapter[T]) -> None:
        self._adapter = adapter
        self._made: list[T] = []

    def reserve(self, like: T) -> Callable[[tuple[int, ...]], Array]:
        """An allocator for one more output."""
        index = len(self._made)
        self._made.append(like)

        def allocate(shape: tuple[int, ...]) -> Array:
            self._made[index] = self._adapter.empty(shape, like)
            return self._adapter.array(self._made[index])

        return allocate

    def collect(self, _: list[CallResult]) -> list[T]:
        """All outputs, once the collective has filled them."""
        return self._made


def number_of(process_set: ProcessSet) -> int:
    """The number of a set that includes this rank."""
    number = process_set.process_set_id
    assert number is not None, "a set that includes this rank is registered"
    return number


def _require_member(kind: Kind, process_set: ProcessSet) -> None:
    if not takes_part(process_set, kind.label):
        rank = current().topology.rank
        raise UsageError(
            f"{kind.label}: rank {rank} is not in {process_set}: call it only where process_set.included()"
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _group(name: str, size: int) -> list[str]:
    """Names of a group's calls. The first stands for the group: ranks that differ in its size still meet."""
    return [name if i == 0 else f"{name}.{i}" for i in range(size)]


def _splits(splits: Sequence[int] | None) -> tuple[int, ...]:
    if splits is None:
        return ()
    given = tuple(int(s) for s in splits)
    if min(given, default=-1) < 0:
        raise UsageError(
            f"alltoall with splits={list(given)}: give every member's count of rows, none of them negative"
        )
    return given
