"""Broadcasts of a training script's variables and objects, and a hook for sessions.

hvd.broadcast_variables(model.variables, root_rank=0)
hooks = [hvd.BroadcastGlobalVariablesHook(0)]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import tensorflow as tf

from farandole.adapters.tensorflow import verbs
from farandole.collective import Kind
from farandole.errors import UsageError
from farandole.events import logger
from farandole.graphs.keras_variables import is_of_keras, is_seed
from farandole.runtime.collectives import objects
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.gradients import ops
from farandole.tensorflow.graph import apart, as_written, in_graph, in_session_graph

_IN_A_GRAPH = (
    "broadcast_variables() in a tf.function: the layer %s goes on with what it has made of its variables on this rank; "
    "call it outside, before the first step"
)

_CARRIED = {tf.uint32: tf.int32, tf.uint64: tf.int64}
"""Unsupported dtypes of variables (seeds of Keras, for example), and the dtypes in which their bits are sent."""


@as_written
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,  # noqa: ARG001 (Horovod's: always in place)
) -> Any:
    """Broadcast the variables of the rank ``root_rank`` to every rank; returns an operation in TensorFlow 1 graphs.

    >>> hvd.broadcast_variables(model.variables, root_rank=0)
    >>> hvd.broadcast_variables(optimizer.variables, root_rank=0)

    Seeds of random Keras layers are skipped: otherwise all ranks would drop out the same units. Layers like
    ``Normalization`` compute with constants derived from their variables: broadcast before the first step, and outside
    of a ``tf.function``, which keeps the constants of its trace.

    All ranks must give the same variables in the same order. Raises ``HorovodInternalError`` if they differ. In a
    graph, a rank without variables has nothing to run, and the others wait until the stall shutdown.
    """
    listed = [variable for variable in variables if not is_seed(variable)]
    with contextlib.nullcontext() if in_graph() else verbs.telling(Kind.BROADCAST, None, process_set):
        tensors = [tf.convert_to_tensor(variable) for variable in listed]
        carried = [tf.bitcast(t, _CARRIED[t.dtype]) if t.dtype in _CARRIED else t for t in tensors]
    is_session = in_session_graph()
    with apart() if is_session else contextlib.nullcontext():
        copied = ops.collectives.broadcast([tf.stop_gradient(t) for t in carried], root_rank, None, process_set)
    assigned = []
    for variable, tensor, value in zip(listed, tensors, copied, strict=True):
        assigned.append(variable.assign(tf.bitcast(value, tensor.dtype) if tensor.dtype in _CARRIED else value))
    refresh_layers(listed)
    return tf.group(*assigned) if is_session else None


def refresh_layers(variables: Sequence[Any]) -> None:
    """Recompute the constants that Keras layers derive from ``variables``; see ``farandole.adapters.layer_tables``."""
    if not any(is_of_keras(variable) for variable in variables):
        return
    from farandole.adapters import layer_tables  # imports Keras, which a script may not use

    if in_graph():
        if layers := layer_tables.deriving(variables):
            logger.warning(_IN_A_GRAPH, layers[0].name)
    else:
        layer_tables.refresh(variables)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,  # noqa: ARG001 (Horovod's: unused, because objects are sent outside of graphs)
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return, on every member, the ``obj`` of the global rank ``root_rank``: any object that cloudpickle supports.

    >>> config = hvd.broadcast_object(config, root_rank=0)
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """``broadcast_object`` as a function of the object alone.

    >>> share = hvd.broadcast_object_fn(root_rank=0)
    >>> config = share(config)
    """
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,  # noqa: ARG001 (Horovod's)
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return, on every member, the list of all members' ``obj``, in member order.

    >>> slowest = max(hvd.allgather_object(seconds))
    """
    return objects.allgather_object(obj, name, process_set)


@as_written
def broadcast_global_variables(root_rank: int) -> Any:
    """Operation that broadcasts the global variables of the rank ``root_rank``, for TensorFlow 1 graphs.

    >>> session.run(hvd.broadcast_global_variables(0))
    """
    if not in_graph():
        raise UsageError(
            "broadcast_global_variables() is for graphs of tf.compat.v1, which know their variables: "
            "call broadcast_variables(model.variables, root_rank=0)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


@final
class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Hook that broadcasts all global variables of the rank ``root_rank`` after a session is created.

    >>> hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    >>> with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session: ...
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the broadcast to the complete graph."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: object) -> None:
        """Run the broadcast."""
        session.run(self.bcast_op)
