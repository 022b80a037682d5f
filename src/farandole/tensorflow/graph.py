"""Calls of collectives in TensorFlow graphs of ``tf.function`` and of ``tf.compat.v1``.

    [mean] = call(Spec("allreduce", "loss"), [loss], [loss.shape])

The native operation returns at once, so that independent collectives run concurrently. If it is not available,
``tf.numpy_function`` runs them one after the other, in the order of the program.

Ranks match calls by name, so two calls of one name must keep their order. TensorFlow keeps the order of operations on
the same resource, also between iterations of a loop and between calls of a function: each name has an empty resource.
"""

# Threads. Any thread may trace graphs; ``_lock`` guards the tables below. Threads of TensorFlow begin the calls of a
# graph, and threads of ``farandole.graphs.calls`` finish them.

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar, final
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from farandole.adapters.tensorflow import DTYPES
from farandole.errors import UnsupportedError
from farandole.graphs.calls import perform, take_calls
from farandole.graphs.library import GraphCall, Library, path_of
from farandole.graphs.tensorflow_versions import lack

AnyGraph: TypeAlias = Any
F = TypeVar("F", bound=Callable[..., Any])

_lock = threading.RLock()
_SELF_TEST_S = 120.0


@final
class Native:
    """The operation ``FarandoleCall``: ``module`` makes it; ``why``: reason if it is not available, else ""."""

    def __init__(self) -> None:
        self.module: Any = None
        self.why = lack(tf.__version__)
        if self.why and not self.why.startswith("TensorFlow"):
            return
        if self.why and not _child_can():  # an unknown version may crash the process: try in a child first
            return
        try:
            self.load()
        except Exception as error:
            self.module, self.why = None, f"it does not work with TensorFlow {tf.__version__}: {error}"
        else:
            self.why = ""

    def load(self) -> None:
        """Load the operation, and test it once; raises an error if it does not work."""
        self.module = tf.load_op_library(path_of("graph_tensorflow"))  # before ctypes opens it: it registers the op
        dtypes = {dtype.as_datatype_enum: np.dtype(dtype.as_numpy_dtype) for dtype in DTYPES}
        library = self._library = Library("graph_tensorflow", dtypes)  # kept alive: it owns the callback for calls
        library.register(_double)
        found = self._doubled([1.0, 2.0])
        if found != [2.0, 4.0]:
            raise UnsupportedError(f"its self-test found {found}")
        take_calls(library)

    def _doubled(self, values: list[float]) -> list[float]:
        """Results of the operation for ``values`` with ``_double``, in a separate graph."""

        def call_native(x: Any) -> Any:
            return self.module.farandole_call(_handle("self-test"), [x], [x.dtype], "")[0]

        with tf.init_scope(), tf.device("CPU:0"):
            if tf.executing_eagerly():
                found = tf.function(call_native)(tf.constant(values)).numpy()
            else:  # after tf.compat.v1.disable_eager_execution()
                # Neither GPUs nor shared threads: the script's own sessions configure these for the whole process.
                config = tf.compat.v1.ConfigProto(device_count={"GPU": 0}, use_per_session_threads=True)
                with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
                    found = session.run(call_native(tf.constant(values)))
        return [float(each) for each in found]


def _double(call: GraphCall) -> None:
    """Self-test: finish a call on another thread, like real calls."""

    def work() -> None:
        np.multiply(call.inputs[0], 2, out=call.output(0, call.inputs[0].shape))
        call.finish()

    threading.Thread(target=work, daemon=True).start()


def _child_can() -> bool:
    command = [
        sys.executable,
        "-c",
        "import farandole.tensorflow.graph as graph; graph.Native.__new__(graph.Native).load()",
    ]
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=_SELF_TEST_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


_native: list[Native] = []


def native() -> Native:
    """The native operation of this process; the first call loads and tests it."""
    with _lock:
        if not _native:
            _native.append(Native())
        return _native[0]


def as_written(function: F) -> F:
    """Decorator that prevents AutoGraph from rewriting ``function`` inside a ``tf.function``."""
    kept: F = tf.autograph.experimental.do_not_convert(function)
    return kept


def in_graph() -> bool:
    """True while a graph is built, not executed."""
    return not tf.executing_eagerly()


def in_session_graph() -> bool:
    """True while a TensorFlow 1 graph is built, which runs only operations that its results depend on."""
    return in_graph() and not tf.compat.v1.get_default_graph().building_function


@final
class _Book:
    """Bookkeeping of one graph: counter of unnamed calls, resources by name, last calls by name, uses by key."""

    def __init__(self) -> None:
        self.unnamed = itertools.count()
        self.handles: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.uses: dict[object, int] = {}


_books: WeakKeyDictionary[AnyGraph, _Book] = WeakKeyDictionary()
_eager_handles: dict[str, Any] = {}


def book() -> _Book:
    """Bookkeeping of the function or graph that is being built, shared by its branches and loops."""
    graph = _function_graph()
    with _lock:
        return _books.setdefault(graph, _Book())


def traced_name() -> str:
    """Name for an unnamed call: the same in every trace of a function, independent of other traces."""
    return f"traced.{getattr(_function_graph(), 'name', 'graph')}.{next(book().unnamed)}"


def occurrence(key: object) -> int:
    """Number of earlier calls with the same key for the current graph."""
    uses = book().uses
    uses[key] = uses.get(key, -1) + 1
    return uses[key]


def call(spec: str, name: str, inputs: Sequence[Any], dtypes: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    """Add a call to the graph that is being built; returns its results, with these dtypes and known dimensions."""
    refuse_xla(name)
    _refuse_old_loops(name)
    _refuse_parallel_pipelines(name)
    with tf.device("CPU:0"), tf.control_dependencies(_before(name)):
        if native().module is not None:
            results = native().module.farandole_call(_handle(name), list(inputs), list(dtypes), spec)
        else:
            results = _call_slowly(spec, list(inputs), list(dtypes))
    if results:
        _note(name, results[0].op)
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return list(results)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Context whose calls have no order relative to calls outside, because a session may run them alone."""
    notes = book()
    last, notes.last = notes.last, {}
    try:
        yield
    finally:
        notes.last = last


def refuse_xla(name: str) -> None:
    """Raise ``UnsupportedError`` inside a function that XLA compiles."""
    from tensorflow.python.ops import control_flow_util  # there is no public function for this

    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UnsupportedError(
            f"{name!r} stands in a function with jit_compile=True: TensorFlow's XLA cannot call out of compiled code. "
            "Take jit_compile off that function, and put it on functions inside of it that have no collective; "
            "in Keras: model.compile(..., jit_compile=False)"
        )


def _call_slowly(spec: str, inputs: list[Any], dtypes: list[Any]) -> list[Any]:
    kinds = [np.dtype(dtype.as_numpy_dtype) for dtype in dtypes]

    def work(*arrays: Any) -> Any:
        return perform(spec, [np.asarray(array) for array in arrays], kinds)

    results = tf.numpy_function(work, inputs, dtypes)
    return list(results) if isinstance(results, list | tuple) else [results]


def _before(name: str) -> list[Any]:
    """Control inputs in TensorFlow 1 graphs, which keep no order: the last call of the same name, or of any name."""
    graph = tf.compat.v1.get_default_graph()
    if getattr(graph, "building_function", False):
        return []
    last = book().last.get(name if native().module is not None else "")
    return [last] if last is not None and last._control_flow_context is graph._get_control_flow_context() else []


def _note(name: str, op: Any) -> None:
    if not getattr(op.graph, "building_function", False):
        book().last[name if native().module is not None else ""] = op


def _refuse_old_loops(name: str) -> None:
    context = tf.compat.v1.get_default_graph()._get_control_flow_context()
    while context is not None:
        if context.IsWhileContext():
            raise UnsupportedError(
                f"{name!r} stands in a tf.while_loop of TensorFlow 1, whose iterations run at the same time: its ranks "
                "could not tell them apart. Call tf.compat.v1.enable_control_flow_v2(), or unroll the loop"
            )
        context = context.outer_context


def _refuse_parallel_pipelines(name: str) -> None:
    """Raise in a parallel function of ``tf.data``; only the objects in the tracing stack reveal that it is parallel."""
    graph = _function_graph()
    if not getattr(graph, "name", "").startswith("Dataset_"):
        return
    frame = sys._getframe(1)
    while frame is not None:
        if type(frame.f_locals.get("self")).__name__.startswith(("_Parallel", "_MapAndBatch")):
            raise UnsupportedError(
                f"{name!r} stands in a function of tf.data that runs for several elements at the same time: ranks "
                "could pair one element with another. Leave num_parallel_calls away, or call it outside of the pipeline"
            )
        frame = frame.f_back  # type: ignore[assignment]


def _handle(name: str) -> Any:
    """Resource of a name."""
    with tf.init_scope(), tf.device("CPU:0"):
        handles = _eager_handles if tf.executing_eagerly() else book().handles
        with _lock:
            if name not in handles:
                handles[name] = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=f"farandole/{name}")
            return handles[name]


def _function_graph() -> AnyGraph:
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "is_control_flow_graph", False) and getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph
