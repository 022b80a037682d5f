"""Collectives called by compiled graphs: begun on the framework's threads, finished on Farandole's.

    spec = Spec("allreduce", "loss").encode()     # when the graph is traced: an attribute of its call
    take_calls(library)                           # when it runs: each call of the library is begun, and finished

Ranks match calls by name alone, as for every collective: the order in which a framework runs independent operations
differs from rank to rank, and from run to run.

Threads. A framework's thread begins a collective and returns: the framework has few threads, and another collective may
need this one. The thread that notices the end of the collective puts the call into ``_Finishers``, whose threads write
the outputs and notify the framework. The framework may then run the rest of the graph on the same thread. That can take
long, so a thread that takes a call ensures that another thread waits for the next call. The threads end with their
session. ``put`` takes only the queue's own lock, so a signal handler may call it (``SimpleQueue`` is reentrant).

This path wakes two threads, which takes longer than the rest of a small all-reduce. So the framework's thread waits
``PROGRESS_S`` for an all-reduce of few bytes; if it completes in time, the thread finishes the call itself. The
framework may then run the next call inside this one, so calls nest, up to ``MOST_NESTED``: the stack is limited.
The next such call is tried without Python: see native/fast_path.hpp.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, final
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from farandole.adapters.numpy import verbs
from farandole.collective import Kind, ReduceOp, Reduction
from farandole.errors import FarandoleError, UnsupportedError, UsageError
from farandole.graphs.library import AnyCall, GraphCall, Library, LocalCall, Origin, note
from farandole.native import core
from farandole.runtime.collectives.verbs import Pending
from farandole.runtime.lanes.inline_payload import EAGER_BYTES
from farandole.runtime.lanes.native_threads import expect_native_threads
from farandole.runtime.session.init import Session, current
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

Begun: TypeAlias = tuple[Pending[Any], Callable[[Any], None]]
"""A collective in flight, and the function that stores its result."""

Function: TypeAlias = Callable[[AnyCall], None]
"""A function that reads the inputs of a call and writes its outputs; runs on a finisher's thread, and may block."""


class Spec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Meaning of one call: a verb with its arguments, or ``function`` with a name that was given to ``provide``."""

    verb: str
    name: str
    op: int = int(ReduceOp.AVERAGE)
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: int = 0
    root: int = -1
    splits: tuple[int, ...] | None = None
    rows: tuple[tuple[int, ...], ...] = ()
    """Rows of each output by member, if known at trace time: the graph's shapes and gradients depend on them."""
    seat: tuple[int, int] | None = None
    """Index of the member that traced the graph, and number of members, if the graph depends on them."""

    def encode(self) -> str:
        """Text in the graph; valid in other processes that load the graph, too."""
        return msgspec.json.encode(self).decode()


FUNCTION = "function"
"""Verb of a call of a provided function; the call's name is the function's."""

PROGRESS_S = 0.001
"""Seconds that a framework's thread waits for a small collective before it leaves the call to the finishers."""

MOST_NESTED = 8
"""Maximum nesting of calls on one thread: finishing a call may run the next call inside it."""

_functions: dict[str, Function] = {}


ON_SEVERAL_DEVICES = (
    "in a program that runs on several local devices, each of which would take part: reduce over these within the "
    "program, and call the function outside of it, or give the program arguments on one device"
)
"""Error text for a call in such a program, with the remedy."""


def provide(name: str, function: Function) -> str:
    """Let graphs call ``function`` by ``name``; return the spec of such calls."""
    expect_native_threads()
    _functions[name] = function
    return Spec(FUNCTION, name).encode()


def take_calls(library: Library) -> None:
    """Begin and finish all calls that graphs make through ``library``, which stays loaded."""
    specs: dict[bytes, Spec] = {}
    expect_native_threads()  # threads that may make any other call, too

    def begin(call: GraphCall) -> None:
        spec = specs.get(call.spec)
        if spec is None:  # two threads may both decode it; either result may be kept
            spec = specs[call.spec] = msgspec.json.decode(call.spec, type=Spec)
        session = current(f"{spec.verb} {spec.name!r} of a compiled graph")
        finishers = _finishers_of(session)
        with _refusal(spec, session):
            _check_seat(spec, session)
            _runs.check(spec, call.origin, call.previous)
        if spec.verb == FUNCTION:
            function = _function(spec)
            finishers.put(lambda: _finish(call, session, lambda: function(call)))
            return
        pending: Pending[Any] | None = None
        try:
            pending, settle = _BEGIN[spec.verb](call, spec, _process_set(session, spec.process_set))
            _hand_over(call, session, finishers, pending, settle)
        except BaseException as error:
            if call.claim():  # otherwise another thread finishes the call, or has finished it
                _withdraw(spec, session, pending, error)
            raise

    library.register(begin)
    library.open_fast_path()


def perform(text: str, inputs: list[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Run the call of a spec and wait; return outputs of these ``dtypes``. For frameworks without native calls."""
    spec, call = msgspec.json.decode(text, type=Spec), LocalCall(inputs, dtypes)
    try:
        session = current(f"{spec.verb} {spec.name!r} of a compiled graph")
        if spec.verb == FUNCTION:
            _function(spec)(call)
        else:
            pending, settle = _BEGIN[spec.verb](call, spec, _process_set(session, spec.process_set))
            settle(pending.wait())
    except BaseException as error:
        note(error)
        raise
    return call.outputs


def _function(spec: Spec) -> Function:
    function = _functions.get(spec.name)
    if function is None:
        raise UsageError(f"the graph calls {spec.name!r}, which this process has not: trace the graph again")
    return function


@final
class _Runs:
    """Last run of a program that made a call of each name, to refuse two calls of the same name in one run.

    Ranks could not match two such calls. Only a loop may repeat a name, because its iterations are sequential: at one
    place of the program, on one device. A framework that does not report its runs is not checked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], Origin] = {}

    def forget(self, verb: str, name: str) -> None:
        """Forget a name, because a new program uses it, and its run numbers may equal those of an old program."""
        core.forget_origins(f"{verb}.{name}")
        with self._lock:
            self._last.pop((verb, name), None)

    def check(self, spec: Spec, origin: Origin, previous: Origin) -> None:
        """Raise ``UsageError`` if a call at another place or on another device of the same run had the same name.

        ``previous``: origin of a call after the last one checked here, if there was one on the fast path.
        """
        if origin.place < 0:
            return
        with self._lock:  # several threads of the framework make calls of one program
            last = self._last.get((spec.verb, spec.name), origin) if previous.place < 0 else previous
            self._last[spec.verb, spec.name] = origin
        if origin.run == last.run and origin.device != last.device:
            raise UsageError(f"{spec.verb} {spec.name!r} {ON_SEVERAL_DEVICES}")
        if origin.device != last.device:
            raise UsageError(
                f"{spec.verb} {spec.name!r} of a compiled program on local device {origin.device}, and before that on "
                f"{last.device}: programs on two devices run beside each other, so that ranks could pair the one with "
                "the other. Use one device per rank, a function and a name= for each, or jax.clear_caches() in between"
            )
        if origin.run == last.run and origin.place != last.place:
            is_step = spec.verb == FUNCTION
            what = "the step of one distributed optimizer" if is_step else f"{spec.verb} {spec.name!r}"
            remedy = (
                "loop by jax.lax.fori_loop or jax.lax.scan, or make a DistributedOptimizer for each"
                if is_step
                else "give each its own name="
            )
            raise UsageError(
                f"{what} stands twice in one compiled program (a jitted function with it was called twice, or a loop "
                f"unrolled), and ranks could pair the one with the other: {remedy}"
            )


class _Nested(threading.local):
    """Number of nested calls that this thread is finishing."""

    calls = 0


_nested = _Nested()
_runs = _Runs()
forget = _runs.forget


def _check_seat(spec: Spec, session: Session) -> None:
    if spec.seat is None:
        return
    process_set = _process_set(session, spec.process_set)
    seat = process_set.rank(), len(process_set.ranks)
    if seat != spec.seat:
        raise UsageError(
            f"{spec.verb} {spec.name!r} was traced by member {spec.seat[0]} of {spec.seat[1]}, and this is member "
            f"{seat[0]} of {seat[1]} now: trace the program again (in JAX: jax.clear_caches())"
        )


def _refusal(spec: Spec, session: Session) -> AbstractContextManager[None]:
    """Context that reports an error to the other ranks, which would otherwise wait for this call."""
    if spec.verb == FUNCTION:
        return nullcontext()
    return verbs.telling(Kind[spec.verb.upper()], spec.name, _process_set(session, spec.process_set))


def _finish_here(finish: Callable[[], None]) -> None:
    _nested.calls += 1
    try:
        finish()
    finally:
        _nested.calls -= 1


def _hand_over(
    call: GraphCall, session: Session, finishers: _Finishers, pending: Pending[Any], settle: Callable[[Any], None]
) -> None:
    """Finish a call when its collective is done: here if it is done already, else on a finisher's thread."""

    def finish() -> None:
        _finish(call, session, lambda: settle(pending.wait()))

    if pending.done() and _nested.calls < MOST_NESTED:  # wakes no thread
        _finish_here(finish)
    else:
        pending.when_done(lambda: finishers.put(finish))  # if done meanwhile, this thread calls ``put``


def _withdraw(spec: Spec, session: Session, pending: Pending[Any] | None, error: BaseException) -> None:
    """Ensure that no engine writes to a call's outputs, which the framework frees when ``error`` is reported to it.

    An interrupted collective may still run, even if no handle was returned: then abort the session.
    """
    # Without a handle, an error of Farandole means that the call never began; other errors may be a signal handler's.
    is_refused = isinstance(error, FarandoleError | MemoryError)
    is_under_way = not is_refused if pending is None else not pending.done()
    if is_under_way and session.topology.size > 1:  # on a single rank, a collective ends before it returns a handle
        session.end.abort(f"{spec.verb} {spec.name!r} of a compiled graph was interrupted: {type(error).__name__}")
    session.await_lane()


def _finish(call: GraphCall, session: Session, work: Callable[[], None]) -> None:
    """Finish a call, unless it is finished or another thread finishes it: an abort may race with a result."""
    if not call.claim():
        return
    try:
        work()
    except BaseException as error:
        session.await_lane()  # before ``fail``, after which the framework frees the outputs: an engine may still write
        call.fail(error)
    else:
        call.finish()


def _allreduce(call: AnyCall, spec: Spec, process_set: ProcessSet) -> Begun:
    results = [call.output(i, given.shape) for i, given in enumerate(call.inputs)]
    for result, given in zip(results, call.inputs, strict=True):
        if result.ctypes.data != given.ctypes.data:
            np.copyto(result, given)
    how = Reduction(ReduceOp(spec.op), spec.prescale, spec.postscale)
    is_small = sum(result.nbytes for result in results) <= EAGER_BYTES and _nested.calls < MOST_NESTED
    request = verbs.allreduce(results, spec.name, how, process_set, in_place=True)
    fast = call.fast_request() if is_small and isinstance(call, GraphCall) else None
    return request.begin(PROGRESS_S if is_small else 0.0, fast), lambda _: None


def _broadcast(call: AnyCall, spec: Spec, process_set: ProcessSet) -> Begun:
    results = [call.output(i, given.shape) for i, given in enumerate(call.inputs)]
    for result, given in zip(results, call.inputs, strict=True):
        if result.ctypes.data != given.ctypes.data:
            np.copyto(result, given)
    return verbs.broadcast(results, spec.root, spec.name, process_set, in_place=True).begin(), lambda _: None


def _reducescatter(call: AnyCall, spec: Spec, process_set: ProcessSet) -> Begun:
    how = Reduction(ReduceOp(spec.op), spec.prescale, spec.postscale)

    def settle(results: list[Any]) -> None:
        for i, result in enumerate(results):
            np.copyto(call.output(i, result.shape), result)

    return verbs.reducescatter(call.inputs, spec.name, how, process_set).begin(), settle


def _allgather(call: AnyCall, spec: Spec, process_set: ProcessSet) -> Begun:
    def settle(results: list[tuple[Any, tuple[int, ...]]]) -> None:
        for i, (result, rows) in enumerate(results):
            _check_rows(spec, i, rows)
            np.copyto(call.output(i, result.shape), result)

    return verbs.allgather(call.inputs, spec.name, process_set).begin(), settle


def _alltoall(call: AnyCall, spec: Spec, process_set: ProcessSet) -> Begun:
    """Alltoall. Second output: the numbers of rows received; optional second input: the numbers of rows to send."""
    splits = spec.splits if len(call.inputs) == 1 else tuple(int(n) for n in call.inputs[1])

    def settle(result: tuple[Any, tuple[int, ...]]) -> None:
        received, counts = result
        _check_rows(spec, 0, counts)
        np.copyto(call.output(0, received.shape), received)
        if len(call.outputs) > 1:
            np.copyto(call.output(1, (len(counts),)), counts)

    return verbs.alltoall(call.inputs[0], splits, spec.name, process_set).begin(), settle


def _check_rows(spec: Spec, output: int, rows: tuple[int, ...]) -> None:
    if spec.rows and rows != spec.rows[output]:
        raise UnsupportedError(
            f"{spec.verb} {spec.name!r}: {list(rows)} rows came from the members, where the compiled program has "
            f"{list(spec.rows[output])}: shapes inside of it are fixed, so call the function outside of it"
        )


_BEGIN: dict[str, Callable[[AnyCall, Spec, ProcessSet], Begun]] = {
    "allreduce": _allreduce,
    "broadcast": _broadcast,
    "reducescatter": _reducescatter,
    "allgather": _allgather,
    "alltoall": _alltoall,
}


def _process_set(session: Session, number: int) -> ProcessSet:
    if not number:
        return global_process_set
    found = session.sets.get(number)
    if found is None:
        raise UsageError(f"process set {number} of a compiled graph is gone: trace the graph again")
    return found


@final
class _Finishers:
    """Threads that finish calls. At least one thread waits for the next call, because busy ones may take long."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the two below; never held while a call is finished
        self._waiting = 0
        self._start()

    def put(self, work: Callable[[], None]) -> None:
        """Queue ``work`` for a thread. Returns at once; safe while the caller holds any locks."""
        self._work.put(work)

    def close(self) -> None:
        """End the threads, each after its current work."""
        self._work.put(None)

    def _start(self) -> None:
        # A daemon, because at the interpreter's exit a framework may never finish the thread's current call.
        threading.Thread(target=self._finish_calls, name="farandole-graphs", daemon=True).start()
        self._waiting += 1

    def _finish_calls(self) -> None:
        while (work := self._work.get()) is not None:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:  # before the work, which may wait for another call in this queue
                    self._start()
            work()
            del work  # frees the arrays of the call
            with self._lock:
                self._waiting += 1
        self._work.put(None)  # to end the next thread


_finishers: WeakKeyDictionary[Session, _Finishers] = WeakKeyDictionary()
_finishers_lock = threading.Lock()


def _finishers_of(session: Session) -> _Finishers:
    found = _finishers.get(session)  # without the lock: from the second call on, the entry exists
    if found is None:
        with _finishers_lock:
            found = _finishers.get(session)
            if found is None:
                found = _finishers[session] = _Finishers()
                session.at_close(found.close)
    return found
