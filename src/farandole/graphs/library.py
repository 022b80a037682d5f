"""Native libraries through which compiled graphs call Farandole, and their requests.

    library = Library("graph_xla", DTYPES)
    library.register(begin)                   # begin(GraphCall): called by the framework's threads, must not wait
    call.finish()                             # by any thread, later

Threads. The framework's threads run ``begin`` under the interpreter's lock (GIL), which ctypes acquires. A
``GraphCall`` belongs to the thread that ``claim``s it; only this thread writes its outputs and finishes it. ``finish``
may run the rest of the framework's graph before it returns, without the GIL and without a lock of Farandole.

Each call is reported to the framework exactly once: the report frees the call and its memory. Two fields hold its
state: ``_taken`` (the owning thread) and ``_over``. One flag would not do: if a signal handler interrupts a thread
between ``claim`` and ``finish``, the same thread, and no other, must still be able to finish the call.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import math
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole import native
from farandole.errors import UnsupportedError
from farandole.native import core
from farandole.runtime.lanes.announcement import FastRequest

AnyArray: TypeAlias = npt.NDArray[Any]


class _Buffer(ctypes.Structure):
    """``Buffer`` of native/graph_call.hpp."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _Origin(ctypes.Structure):
    """``Origin`` of native/graph_call.hpp."""

    _fields_ = (("run", ctypes.c_int64), ("device", ctypes.c_int64), ("place", ctypes.c_int64))


class _Request(ctypes.Structure):
    """``Request`` of native/graph_call.hpp."""

    _fields_ = (
        ("spec", ctypes.c_void_p),
        ("spec_bytes", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("origin", _Origin),
        ("previous", _Origin),
        ("has_come", ctypes.POINTER(ctypes.c_int64)),
    )


_BEGIN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Request))


_numbers = itertools.count(1)
_taken: list[Any] = []
"""Functions that native code calls; kept until the process exits, because graphs may run that long."""


@final
class Library:
    """A native library of this package; ``dtypes``: NumPy dtypes by the framework's dtype numbers."""

    def __init__(self, name: str, dtypes: Mapping[int, np.dtype[Any]]) -> None:
        self.path = path_of(name)
        self.number = next(_numbers)
        self.dtypes = dtypes
        self.native = ctypes.CDLL(self.path)
        self.finish = self.native.farandole_graph_finish
        self.finish.argtypes, self.finish.restype = (ctypes.c_void_p, ctypes.c_char_p), None
        self.allocate = self.native.farandole_graph_allocate
        self.allocate.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)
        self.allocate.restype = ctypes.c_void_p

    def open_fast_path(self) -> None:
        """Let native code try calls without Python, for which Python has opened the fast path."""
        function = self.native.farandole_graph_set_fast
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int64), None
        function(core.fast_call(), self.number)

    def register(self, begin: Callable[[GraphCall], None]) -> None:
        """Register ``begin`` for all calls of graphs; an exception of ``begin`` becomes the error of the call."""

        def receive(address: int, request: Any) -> None:
            request.contents.has_come[0] = 1  # first: before this, native code reports a signal handler's exception
            call: GraphCall | None = None
            is_over = False

            def fail(error: BaseException) -> None:
                nonlocal is_over
                if call is not None:
                    if call.claim():
                        call.fail(error)
                    return
                text = self.text_of(error)
                if not is_over:  # see ``GraphCall._report_end``
                    is_over = True
                    self.finish(address, text)

            try:
                call = GraphCall(self, address, request.contents)
                begin(call)
            except BaseException as error:  # also from a signal handler, even after another thread took the call
                try:
                    fail(error)
                except BaseException as another:  # a signal handler's exception during the first error
                    fail(another)

        function = _BEGIN(receive)
        _taken.append(function)
        self.native.farandole_graph_set_begin(function)

    def text_of(self, error: BaseException) -> bytes:
        """Error text for the framework, from which ``original`` finds ``error`` again."""
        note(error)
        return "".join(traceback.format_exception_only(error)).strip().encode(errors="replace")


class Origin(NamedTuple):
    """Origin of a call: the run of a program, the device, and the place in the program.

    A place of -1: the framework does not report it. Runs of the same program have different numbers.
    """

    run: int
    device: int
    place: int


@final
class GraphCall:
    """One call of a graph: ``spec`` describes the operation; ``inputs`` are views of its arrays, never to be written.

    ``outputs``: views of the result arrays, ``None`` if ``output`` must allocate them for a shape first. ``previous``:
    origin of the last call with this spec, if that call ran without Python.
    """

    __slots__ = (
        "_address", "_dtypes", "_library", "_lock", "_numbers", "_over", "_taken",
        "inputs", "origin", "outputs", "previous", "spec",
    )  # fmt: skip

    def __init__(self, library: Library, address: int, request: Any) -> None:
        self._library, self._address = library, address
        self._lock = threading.Lock()  # guards ``_taken``; the thread in ``_taken`` may change ``_over`` without it
        self._taken, self._over = 0, False
        self.spec = ctypes.string_at(request.spec, request.spec_bytes)
        self.origin, self.previous = _origin(request.origin), _origin(request.previous)
        inputs, buffers = request.inputs, request.buffers
        total = inputs + request.outputs
        self._numbers = [buffers[i].dtype for i in range(total)]
        self._dtypes = [library.dtypes.get(number) for number in self._numbers]
        self.inputs = [_array(buffers[i], self._dtypes[i]) for i in range(inputs)]
        self.outputs: list[AnyArray | None] = [
            _array(buffers[i], self._dtypes[i]) if buffers[i].data else None for i in range(inputs, total)
        ]

    def fast_request(self) -> FastRequest:
        """Key by which the native core recognizes the next call like this one."""
        inputs = [(number, given.shape) for number, given in zip(self._numbers, self.inputs, strict=False)]
        return FastRequest(self._library.number, self.spec, inputs, self.origin)

    def output(self, index: int, shape: tuple[int, ...]) -> AnyArray:
        """Array for a result of this shape; raises ``UnsupportedError`` if the graph has fixed another shape."""
        known = self.outputs[index]
        if known is None:
            dims = (ctypes.c_int64 * len(shape))(*shape)
            address = self._library.allocate(self._address, index, dims, len(shape))
            if not address:
                raise MemoryError(f"the framework has no memory for a result of shape {shape}")
            known = self.outputs[index] = _on_memory(address, shape, self._dtypes[len(self.inputs) + index])
        elif known.shape != shape:
            raise UnsupportedError(
                f"a result of shape {shape}, where the compiled program has {known.shape}: shapes inside of it are "
                "fixed, so call the function outside of it"
            )
        return known

    def claim(self) -> bool:
        """Make this thread the one that finishes the call; False if another thread is, or the call is finished."""
        me = threading.get_ident()
        with self._lock:
            if self._over or self._taken not in (0, me):
                return False
            self._taken = me
        return True

    def finish(self) -> None:
        """Report success to the framework, unless an end was reported. Only for the thread that took the call."""
        self._report_end(None)

    def fail(self, error: BaseException) -> None:
        """Report ``error`` to the framework, unless an end was reported. Only for the thread that took the call."""
        self._report_end(self._library.text_of(error))

    def _report_end(self, text: bytes | None) -> None:
        # Only the owning thread gets here, so no lock. No other call may stand between the next three lines: a signal
        # handler could raise after it, and the end would be reported never or twice.
        if not self._over:
            self._over = True
            self._library.finish(self._address, text)


@final
class LocalCall:
    """One call with arrays of Python code as inputs; ``output`` allocates the results."""

    def __init__(self, inputs: list[AnyArray], dtypes: Sequence[npt.DTypeLike]) -> None:
        self.inputs = inputs
        self.outputs: list[AnyArray | None] = [None] * len(dtypes)
        self._dtypes = dtypes

    def output(self, index: int, shape: tuple[int, ...]) -> AnyArray:
        """See ``GraphCall``."""
        made = self.outputs[index] = np.empty(shape, self._dtypes[index])
        return made


AnyCall: TypeAlias = GraphCall | LocalCall


def note(error: BaseException) -> None:
    """Remember an error for ``original``, before the framework wraps it."""
    _failures.append(error.with_traceback(None))


def original(error: BaseException) -> BaseException:
    """The Farandole error that a framework has wrapped in ``error``, or ``error`` itself if there is none.

    try:
        step(state).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        raise original(error) from error
    """
    text = str(error)
    return next((ours for ours in reversed(_failures) if str(ours) and str(ours) in text), error)


_failures: collections.deque[BaseException] = collections.deque(maxlen=16)
"""The last errors passed to a framework, without tracebacks, whose frames would keep the arrays of the call."""


def path_of(name: str) -> str:
    """Path of a native library; raises ``UnsupportedError`` if this installation lacks the file."""
    path = Path(native.__file__).parent / f"{name}.so"
    folders = [Path(folder) for folder in native.__path__]  # an editable installation has other folders
    for found in (path, *(folder / path.name for folder in folders)):
        if found.exists():
            return str(found)
    raise UnsupportedError(f"{path} is missing: this installation is broken, reinstall farandole")


def _origin(native: Any) -> Origin:
    return Origin(native.run, native.device, native.place)


def _array(buffer: Any, dtype: np.dtype[Any] | None) -> AnyArray:
    return _on_memory(buffer.data, tuple(buffer.dims[: buffer.rank]), dtype)


def _on_memory(address: int | None, shape: tuple[int, ...], dtype: np.dtype[Any] | None) -> AnyArray:
    if dtype is None:
        raise UnsupportedError("a tensor of this dtype does not travel")
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_ubyte * nbytes).from_address(address or 0)
    return np.ndarray(shape, dtype, memory)
