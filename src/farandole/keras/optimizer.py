"""``DistributedOptimizer`` for Keras 3: any Keras optimizer, on any backend, with the gradients of all ranks.

    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3))
    model.compile(optimizer, loss="mse")

On every backend, Keras calls ``apply`` with the gradients of one batch, before it clips, accumulates and decays
weights: there the gradients are reduced. On JAX, an optimizer that scales losses is called by ``stateless_apply``.

``compile`` puts a ``LossScaleOptimizer`` around the optimizer of a float16 model. That decides by its gradients whether
to step, so it must get reduced ones: around a distributed optimizer, it becomes a distributed optimizer itself, with
the same reduction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeVar, cast

import keras

from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.gradients.reduction_options import (
    ReductionOptions,
    checked_passes,
    gradient_reduction,
    refuse_impossible_groups,
)
from farandole.keras.backends import backend
from farandole.keras.compression import CompressorLike, NoneCompressor
from farandole.keras.distribution import Distribution, KerasTerms
from farandole.keras.optimizer_tree import leaves
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

Optimizer = TypeVar("Optimizer", bound=keras.optimizers.Optimizer)

_CALLERS = 8
"""Number of calling frames to search for a ``LossScaleOptimizer``, because AutoGraph may add frames in between."""

_SCALED_UNBUILT = (
    "the first step of a LossScaleOptimizer around a distributed optimizer that is not built: ranks would decide for "
    "themselves whether to take it. Call its build(model.trainable_variables) before, or pass "
    "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
)
_CLIPS_LOCAL = (
    "global_clipnorm with local_layers: the norm would include gradients that each rank has for itself, so ranks would "
    "step differently with those that they share. Clip by clipnorm= or clipvalue=, which look at one variable at a "
    "time, or keep no layers local"
)

_SCALES_LOCAL = (
    "local_layers with scaled losses: a rank whose local gradients overflow would skip a step that the others take. "
    "Train in float32 or bfloat16, or keep no layers local"
)


def DistributedOptimizer(  # noqa: N802 (used like a class)
    optimizer: Optimizer,
    name: str | None = None,
    device_dense: str = "",  # noqa: ARG001 (Horovod's)
    device_sparse: str = "",  # noqa: ARG001
    compression: CompressorLike = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = ReduceOp.AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    local_layers: Iterable[keras.layers.Layer] | keras.layers.Layer | None = None,
) -> Optimizer:
    """Optimizer that steps with the gradients of all ranks; its class is a subclass of the class of ``optimizer``.

    >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size(), momentum=0.9)), loss="mse")

    The result shares its state with ``optimizer``, which itself still steps with its own rank's gradients. ``op``:
    Average or Sum. ``backward_passes_per_step``: step with the sum of that many batches, or their mean if
    ``average_aggregated_gradients``; Keras accumulates, so ``optimizer`` must be unbuilt, or accumulate the same
    number. ``gradient_predivide_factor``: divide by it before the sum, and by *size* / factor after it.
    ``compression``: for the transfer. ``local_layers``: built layers whose gradients are not reduced, but divided by
    *size* unless ``scale_local_gradients`` is false; not allowed with ``global_clipnorm`` or scaled losses, because
    norms and overflows would differ between ranks. Ranks outside of ``process_set`` step with their own gradients. A
    ``keras.optimizers.LossScaleOptimizer`` may be inside, or around it (``compile`` adds one for float16 models); in
    your own loop you scale the loss yourself. ``sparse_as_dense``: on TensorFlow, convert gradients of embeddings to
    dense tensors instead of gathering their rows. Devices and groups have no effect: all gradients are reduced
    together. Raises ``UsageError`` for invalid arguments.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"DistributedOptimizer() of a {type(optimizer).__name__}: give an optimizer of Keras 3, as "
            "keras.optimizers.SGD(0.1)"
        )
    inner = getattr(optimizer, "inner_optimizer", None)  # of a ``LossScaleOptimizer``
    if isinstance(optimizer, _Reducing) or isinstance(inner, _Reducing):
        raise UsageError("DistributedOptimizer of a distributed optimizer: wrap it once")
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(f"DistributedOptimizer(op={ReduceOp(op).label}): it takes Average and Sum")
    refuse_impossible_groups(num_groups, groups)
    passes = _accumulating(optimizer, backward_passes_per_step, average_aggregated_gradients)
    how = gradient_reduction(op, gradient_predivide_factor)
    label = name or type(optimizer).__name__  # not the optimizer's name, which has a per-process number
    local = _variables_of(local_layers, optimizer)
    terms = ReductionOptions(how, process_set=process_set)
    asked = KerasTerms(terms, compression, label, sparse_as_dense, scale_local_gradients, passes)
    return _with(optimizer, Distribution(asked, local))


def PartialDistributedOptimizer(  # noqa: N802
    optimizer: Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = ReduceOp.AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Iterable[keras.layers.Layer] | keras.layers.Layer | None = None,
    scale_local_gradients: bool = True,
) -> Optimizer:
    """``DistributedOptimizer`` that does not reduce the gradients of ``local_layers``.

    >>> hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[model.layers[0]])
    """
    return DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients,
        local_layers=local_layers,
    )  # fmt: skip


def _accumulating(optimizer: keras.optimizers.Optimizer, passes: int, averages: bool) -> float:
    """Let Keras accumulate, which computes means; return the factor from its mean to the requested result."""
    if checked_passes(passes) == 1:
        return 1.0
    found = leaves(optimizer)
    if not found:
        raise UsageError(
            f"backward_passes_per_step={passes} of a {type(optimizer).__name__} that chooses its optimizers by a "
            f"function: give each of them gradient_accumulation_steps={passes} there, for steps with the mean"
        )
    for leaf in found:
        if leaf.gradient_accumulation_steps != passes and (leaf.built or leaf.gradient_accumulation_steps):
            raise UsageError(
                f"backward_passes_per_step={passes} of an optimizer ({type(leaf).__name__}) that is built, or "
                f"accumulates another number by itself: pass gradient_accumulation_steps={passes} to it, too"
            )
    for leaf in found:
        leaf.gradient_accumulation_steps = passes
    return 1.0 if averages else float(passes)


def _variables_of(
    layers: Iterable[keras.layers.Layer] | keras.layers.Layer | None, optimizer: keras.optimizers.Optimizer
) -> list[Any]:
    """Variables of local layers; raises ``UsageError`` if ``optimizer`` would mix them with others."""
    listed = [layers] if isinstance(layers, keras.layers.Layer) else list(layers or ())
    for layer in listed:
        if not layer.built:
            raise UsageError(
                f"local_layers: {layer.name} is not built, and has no variables yet: build the model first"
            )
    if listed:
        _require_no_mix(optimizer)
    return [variable for layer in listed for variable in layer.variables]


def _require_no_mix(optimizer: Any) -> None:
    """Raise ``UsageError`` for an optimizer that would mix local variables with others."""
    if any(leaf.global_clipnorm for leaf in leaves(optimizer)):
        raise UsageError(_CLIPS_LOCAL)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UsageError(_SCALES_LOCAL)


def _with(optimizer: Optimizer, distribution: Distribution) -> Optimizer:
    """Object with the state of ``optimizer``, of a subclass that reduces gradients first."""
    made: Any = object.__new__(_reducing(type(optimizer), distribution))
    object.__setattr__(made, "__dict__", vars(optimizer))  # the same dict, not a copy: it may not be built yet
    return cast("Optimizer", made)


def _reducing(kind: type, distribution: Distribution) -> type:
    """Subclass of the optimizer class ``kind`` that reduces gradients first."""
    # Keras saves an optimizer by the name and module of its class.
    content = {"__module__": kind.__module__, "_farandole": distribution, "_farandole_kind": kind}
    return type(kind.__name__, (_Reducing, kind), content)


class _Reducing:
    """Mixin that reduces gradients before the methods of an optimizer's own class."""

    # Class attributes (each object has its own class), because Keras would track instance attributes with the model.
    _farandole: ClassVar[Distribution]
    _farandole_kind: ClassVar[type]

    @backend.as_written
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce the gradients and apply them. Collective."""
        with self._farandole.reducing(self, grads, trainable_variables) as reduced:
            super().apply(reduced, trainable_variables)  # type: ignore[misc]

    @backend.as_written
    def stateless_apply(self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        """``apply`` for JAX, without side effects: takes and returns all state."""
        with self._farandole.reducing(self, grads, None, trainable_variables) as reduced:
            return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradients of a variable from the reduction, like ``local_layers``; before the first step."""
        _require_no_mix(self)
        if self._farandole.is_scaled:
            raise UsageError(_SCALES_LOCAL)
        self._farandole.add_local(var)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """See Keras; before 3.11 this is the only call in which a ``LossScaleOptimizer`` around it can be found."""
        self._share_with_scale()
        return super().build(*args, **kwargs)  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        """See Keras; the copy is a distributed optimizer, too."""
        given = () if custom_objects is None else (custom_objects,)
        return _with(cls._farandole_kind.from_config(config, *given), cls._farandole.anew())  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loss_scale_factor" and value is None:
            self._share_with_scale()
        if name == "global_clipnorm" and value and self._farandole.has_local:
            raise UsageError(_CLIPS_LOCAL)
        super().__setattr__(name, value)

    def _share_with_scale(self) -> None:
        """Make a ``LossScaleOptimizer`` around this, if it is among the callers, reduce before it decides to step."""
        scale, frame = None, sys._getframe(2)
        for _ in range(_CALLERS):
            caller = frame.f_locals.get("self")
            if isinstance(caller, keras.optimizers.LossScaleOptimizer) and vars(caller).get("inner_optimizer") is self:
                if frame.f_code.co_name == "apply" and not isinstance(caller, _Reducing):
                    raise UsageError(_SCALED_UNBUILT)
                scale = caller
            if frame.f_back is None:
                break
            frame = frame.f_back
        if scale is None or isinstance(scale, _Reducing):
            return
        if self._farandole.has_local:
            raise UsageError(_SCALES_LOCAL)
        self._farandole.is_scaled = True
        object.__setattr__(scale, "__class__", _reducing(type(scale), self._farandole))
