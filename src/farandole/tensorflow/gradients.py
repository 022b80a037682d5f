"""Reduction of lists of gradients, as one call in a graph, and the gradient tapes that use it.

tape = hvd.DistributedGradientTape(tape)
gradients = tape.gradient(loss, model.trainable_variables)
"""

# Threads. ``_lock`` guards ``_made``: several threads may trace functions. TensorFlow's threads run the calls: see
# ``graphs/gradients``.
#
# A tape lives for one step and knows no optimizer. So a reduction is identified by the names and shapes of its
# gradients, and by the number of equal reductions before it in the function: this is the same in each trace and on
# each rank, independent of other traces. Models with the same names and shapes share a reduction. When the variables
# change, the ranks restart the comparison of parameters.

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record  # there is no public function to ask whether a tape records

from farandole.adapters.tensorflow import DTYPES, AnyTensor, is_variable, placed, values_of
from farandole.collective import ReduceOp
from farandole.gradients.optimizer_key import without_numbers
from farandole.gradients.reduction_options import ReductionOptions, gradient_reduction, refuse_impossible_groups
from farandole.graphs.gradients import GraphGradients, ReadWhenCompared
from farandole.runtime.collectives.compression import CompressorLike
from farandole.runtime.session.init import takes_part
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.graph import as_written, call, in_graph, occurrence, refuse_xla
from farandole.tensorflow.ops import TensorFlowOps
from farandole.tensorflow.topology import members

Gradients: TypeAlias = list[AnyTensor | None]

ops = TensorFlowOps("farandole.tensorflow")

_lock = threading.Lock()
_made: dict[object, _Shared] = {}


@final
@dataclass(frozen=True)
class Asked:
    """Arguments that tapes and optimizers share."""

    compression: CompressorLike = Compression.none
    sparse_as_dense: bool = False
    op: int = ReduceOp.AVERAGE
    predivide: float = 1.0
    process_set: ProcessSet = global_process_set
    scale_local: bool = True

    def checked(self, num_groups: int = 0, groups: Any = None) -> Asked:
        """Return ``self``; raises ``UsageError`` for invalid arguments. Groups are valid but have no effect."""
        gradient_reduction(self.op, self.predivide)
        refuse_impossible_groups(num_groups, groups)
        return self


def reduce(gradients: Sequence[Any], sources: Sequence[Any], asked: Asked) -> list[Any]:
    """Reduce gradients over all ranks; ``sources`` are their variables, which give the shapes. Collective.

    ``None`` stays ``None`` in a graph, and in eager mode if no rank has a gradient. All dense gradients are one call;
    slices of embeddings are gathered one by one, unless ``sparse_as_dense``.
    """
    if not takes_part(asked.process_set, "a reduction of gradients"):
        return list(gradients)
    results = list(gradients)
    if asked.sparse_as_dense:
        results = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in results]
    sparse = [i for i, g in enumerate(results) if isinstance(g, tf.IndexedSlices)]
    dense = [i for i, g in enumerate(results) if i not in sparse and (g is not None or not in_graph())]
    names = [_name(i, sources[i]) for i in dense]
    reduced = _reduce_dense([results[i] for i in dense], [sources[i] for i in dense], names, asked) if dense else []
    for i, gradient in zip(dense, reduced, strict=True):
        results[i] = gradient
    for i in sparse:
        factor = asked.predivide
        results[i] = ops.allreduce(
            results[i], None, "", "", asked.compression, asked.op, 1 / factor, factor, None, asked.process_set
        )
    return results


def _name(position: int, source: Any) -> str:
    """Name of a gradient on all ranks: the position of its variable, and the variable's name without numbers.

    By shapes alone, ranks could pair gradients of different variables of the same shape.
    """
    title = str(getattr(source, "path", None) or source.name) if is_variable(source) else ""
    return f"{position}.{without_numbers(title)}"


def _reduce_dense(gradients: Gradients, sources: Sequence[Any], names: Sequence[str], asked: Asked) -> Gradients:
    compressed = [(None, None) if g is None else asked.compression.compress(g) for g in gradients]
    travelling = [t for t, _ in compressed]
    found = [_like(t, source, asked) for t, source in zip(travelling, sources, strict=True)]
    likes = [like for like in found if like is not None]
    if asked.op == ReduceOp.ADASUM or len(likes) < len(found):
        reduced = _one_by_one(travelling, sources, asked)
    elif record.should_record_backprop([t for t in travelling if t is not None]):
        reduced = _recorded(travelling, likes, sources, names, asked)
    else:
        reduced = _together(travelling, likes, weights_of(sources), sources, names, asked)
    return [
        None if t is None else asked.compression.decompress(t, context)
        for t, (_, context) in zip(reduced, compressed, strict=True)
    ]


def _together(
    travelling: Gradients,
    likes: Sequence[Any],
    weights: list[AnyTensor],
    sources: Sequence[Any],
    names: Sequence[str],
    asked: Asked,
) -> Gradients:
    """Reduce all gradients by one call."""
    if not in_graph():
        made = _reducer(likes, asked, sources, names)
        given = [None if t is None else values_of(t) for t in travelling]
        arrays = made.reduce(given, weights=ReadWhenCompared(weights, values_of))
        return _placed(
            [None if array is None else tf.convert_to_tensor(array) for array in arrays], travelling, sources
        )
    refuse_xla(f"gradients of {len(likes)} variables")
    made = _reducer(likes, asked, sources, names)
    present = [t for t in travelling if t is not None]
    return call(made.spec, made.spec, [*present, *weights], [t.dtype for t in present], [t.shape for t in present])


def _recorded(
    travelling: Gradients, likes: Sequence[Any], sources: Sequence[Any], names: Sequence[str], asked: Asked
) -> Gradients:
    """``_together`` for a recording tape: its gradient is the same reduction of the incoming gradients."""
    weights = weights_of(sources)  # outside ``forward``: variables inside would need gradients
    given = [i for i, t in enumerate(travelling) if t is not None]
    got: list[int] = []

    def forward(*tensors: AnyTensor) -> Any:
        held: Gradients = [None] * len(travelling)
        for i, tensor in zip(given, tensors, strict=True):
            held[i] = tensor
        reduced = _together(held, likes, weights, sources, names, asked)
        got[:] = [i for i, t in enumerate(reduced) if t is not None]

        def grad(*grads: AnyTensor) -> Any:
            back = dict(zip(got, _one_by_one(list(grads), [sources[i] for i in got], asked), strict=True))
            return [back[i] for i in given]

        return [reduced[i] for i in got], grad

    results = tf.custom_gradient(forward)(*(travelling[i] for i in given))
    found = dict(zip(got, results, strict=True))
    reduced = [found.get(i) for i in range(len(travelling))]
    return reduced if in_graph() else _placed(reduced, travelling, sources)  # from where ``custom_gradient`` moves them


def _placed(reduced: Gradients, travelling: Gradients, sources: Sequence[Any]) -> Gradients:
    """Reduced gradients on the devices of this rank's, or of the variables."""
    likes = [source if given is None else given for given, source in zip(travelling, sources, strict=True)]
    return [None if t is None else placed(like, t) for like, t in zip(likes, reduced, strict=True)]


def _like(gradient: AnyTensor | None, source: Any, asked: Asked) -> tuple[tuple[int, ...], Any] | None:
    """Shape and dtype of a compressed gradient; ``None`` if the graph does not know the shape."""
    shape = (
        tf.TensorShape(source.shape) if gradient is None or not gradient.shape.is_fully_defined() else gradient.shape
    )
    if not shape.is_fully_defined():
        return None
    dtype = asked.compression.compress(tf.zeros([], source.dtype))[0].dtype if gradient is None else gradient.dtype
    return tuple(shape.as_list()), np.dtype(tf.as_dtype(dtype).as_numpy_dtype)


def weights_of(sources: Sequence[Any]) -> list[AnyTensor]:
    """Values of the variables, for ranks to compare; [] if some source is no variable or has an unsupported dtype."""
    if not all(is_variable(source) and tf.as_dtype(source.dtype).base_dtype in DTYPES for source in sources):
        return []
    return [tf.stop_gradient(tf.convert_to_tensor(source)) for source in sources]


def _one_by_one(gradients: Gradients, sources: Sequence[Any], asked: Asked) -> Gradients:
    given = [tf.zeros_like(source) if g is None else g for g, source in zip(gradients, sources, strict=True)]
    factor = asked.predivide
    return ops.grouped_allreduce(given, None, "", "", Compression.none, asked.op, 1 / factor, factor, asked.process_set)


def _reducer(likes: Sequence[Any], asked: Asked, sources: Sequence[Any], names: Sequence[str]) -> GraphGradients:
    """Reducer of such gradients: the same one in each trace of a function, and in each eager step.

    Ranks match reducers by the names of their gradients, the kind of reduction, and the order of creation.
    """
    terms = (tuple((shape, dtype.name) for shape, dtype in likes), int(asked.op), asked.predivide)
    members = tuple(asked.process_set.ranks) if asked.process_set.process_set_id else ()
    number = occurrence((terms, members, *names)) if in_graph() else -1
    with _lock:
        key = (terms, tuple(names), id(asked.process_set), number)  # by ``id``: two sets may have the same ranks
        if key not in _made:
            how = gradient_reduction(asked.op, asked.predivide)
            label = f"tensorflow {len(likes)} {_digest(repr((terms[1:], members, number)))}"
            titles = [str(getattr(s, "path", getattr(s, "name", i))) for i, s in enumerate(sources)]
            _made[key] = _Shared(
                GraphGradients(likes, names, ReductionOptions(how, process_set=asked.process_set), label, titles=titles)
            )
        return _made[key].of(sources[0])


@final
class _Shared:
    """Reduction shared by all lists of gradients with the same names and shapes: of several models, or in sequence."""

    def __init__(self, gradients: GraphGradients) -> None:
        self._gradients = gradients
        self._first: Callable[[], Any] = lambda: None

    def of(self, first: Any) -> GraphGradients:
        """The reduction; restarts the comparison if ``first``, the model's first variable, is another than before."""
        if is_variable(first) and self._first() is not first:
            self._gradients.reducer.compare_anew()
            self._first = weakref.ref(first)
        return self._gradients


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


class DistributedTape:
    """A ``tf.GradientTape`` whose ``gradient`` is reduced over all ranks; all other methods are the tape's."""

    def __init__(self, tape: Any, asked: Asked, local: Sequence[Any] = ()) -> None:
        self._tape, self._asked = tape, asked
        self._local = [variable_id(source) for source in local]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> DistributedTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    @as_written
    def register_local_source(self, source: Any) -> None:
        """Exclude the gradient of a variable from the reduction.

        >>> tape.register_local_source(model.layers[0].kernel)
        """
        self._local.append(variable_id(source))

    @as_written
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, *others: Any, **named: Any) -> Any:
        """Gradients of ``target``, reduced over all ranks. Collective; takes TensorFlow's arguments.

        >>> gradients = tape.gradient(loss, model.trainable_variables)
        """
        found = self._tape.gradient(target, sources, output_gradients, *others, **named)
        flat, variables = tf.nest.flatten(found), tf.nest.flatten(sources)
        return tf.nest.pack_sequence_as(found, self._reduced(flat, variables), expand_composites=False)

    @as_written
    def get_local_and_global_gradients(self, gradients: Any, sources: Any) -> tuple[list[Any], list[Any]]:
        """Split (gradient, variable) pairs into local ones and reduced ones."""
        local: list[Any] = []
        shared: list[Any] = []
        for pair in zip(tf.nest.flatten(gradients), tf.nest.flatten(sources), strict=True):
            (local if variable_id(pair[1]) in self._local else shared).append(pair)
        return local, shared

    def _reduced(self, gradients: list[Any], sources: list[Any]) -> list[Any]:
        return reduce_but(gradients, sources, self._asked, self._local)


def reduce_but(gradients: list[Any], sources: list[Any], asked: Asked, local: Sequence[int]) -> list[Any]:
    """Reduce all gradients except those of ``local`` sources, which are divided by *size* if ``scale_local``."""
    shared = [i for i, source in enumerate(sources) if variable_id(source) not in local]
    results = list(gradients)
    for i in set(range(len(gradients))).difference(shared):
        results[i] = _scaled(gradients[i], asked)
    reduced = reduce([gradients[i] for i in shared], [sources[i] for i in shared], asked)
    for i, gradient in zip(shared, reduced, strict=True):
        results[i] = gradient
    return results


def _scaled(gradient: Any, asked: Asked) -> Any:
    if gradient is None or not asked.scale_local:
        return gradient
    size = tf.cast(members(asked.process_set), gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
    return gradient / size


def variable_id(source: Any) -> int:
    """The ``id`` of a variable; for a Keras variable, of the TensorFlow variable in it."""
    return id(source if isinstance(source, tf.Variable) or not is_variable(source) else source.value)


@as_written
def DistributedGradientTape(  # noqa: N802 (used like a class)
    gradtape: Any,
    device_dense: str = "",  # noqa: ARG001 (Horovod's)
    device_sparse: str = "",  # noqa: ARG001
    compression: CompressorLike = Compression.none,
    sparse_as_dense: bool = False,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """Tape with the average of all ranks' gradients.

    >>> with tf.GradientTape() as tape:
    ...     loss = loss_of(model(x), y)
    >>> tape = hvd.DistributedGradientTape(tape)
    >>> gradients = tape.gradient(loss, model.trainable_variables)

    In a graph the gradients are one call. ``sparse_as_dense``: convert gradients of embeddings to dense tensors instead
    of gathering their rows. ``gradient_predivide_factor``: divide by it before the sum, and by *size* / factor after
    it. ``scale_local_gradients``: divide local gradients by *size*, because the loss is the mean over all ranks.
    ``num_groups`` and ``groups`` have no effect: all gradients are reduced together. Raises ``ValueError`` for invalid
    arguments.
    """
    asked = Asked(compression, sparse_as_dense, op, gradient_predivide_factor, process_set, scale_local_gradients)
    return DistributedTape(gradtape, asked.checked(num_groups, groups))


@as_written
def PartialDistributedGradientTape(  # noqa: N802
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = Compression.none,
    sparse_as_dense: bool = False,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """``DistributedGradientTape`` that does not reduce the gradients of ``local_layers``.

    >>> tape = hvd.PartialDistributedGradientTape(tape, local_layers=[model.layers[0]])
    """
    made = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor,
        num_groups, groups, process_set, scale_local_gradients,
    )  # fmt: skip
    layers = local_layers if isinstance(local_layers, list | tuple) else [] if local_layers is None else [local_layers]
    for layer in layers:
        for source in layer.trainable_variables:
            made.register_local_source(source)
    return made
