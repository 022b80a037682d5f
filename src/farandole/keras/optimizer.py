"""``DistributedOptimizer`` for Keras 3: any of its optimizers, on any backend, with the gradients of all ranks.

    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3))
    model.compile(optimizer, loss="mse")

Keras calls ``apply`` on every backend, with the gradients of one batch, before it clips, accumulates and decays
weights: so that is where they are reduced. On JAX an optimizer that scales losses has another way in,
``stateless_apply``.

``compile`` puts a ``LossScaleOptimizer`` around an optimizer where the model computes in float16. It decides by the
gradients that it is given whether to step, so it must be given reduced ones: it becomes a distributed optimizer itself,
with the same reduction, when it is put around one.
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
"""Callers among which a ``LossScaleOptimizer`` is looked for: between it and the optimizer there may be AutoGraph."""

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


def DistributedOptimizer(  # noqa: N802 (it stands for a class)
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
    """Optimizer that steps with the gradients of all ranks, an instance of a subclass of that of ``optimizer``.

    >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size(), momentum=0.9)), loss="mse")

    It shares its state with ``optimizer``, which goes on to step with gradients of its own rank alone. ``op``: Average
    or Sum. ``backward_passes_per_step``: step with the sum of so many batches, or their mean if
    ``average_aggregated_gradients``; Keras accumulates, so ``optimizer`` must not be built yet, or accumulate as many.
    ``gradient_predivide_factor``: divide by it before the sum, and by *size* over it after. ``compression``: what
    gradients travel as. ``local_layers``: layers, which must be built, whose gradients stay this rank's own, divided by
    *size* unless ``scale_local_gradients`` is false; with ``global_clipnorm`` or scaled losses there can be none, as
    norms and overflows would be other ones on each rank. Ranks outside of ``process_set`` step with their own
    gradients. A ``keras.optimizers.LossScaleOptimizer`` may be inside of it, or around it as ``compile`` puts one where
    a model computes in float16; a loop of your own scales losses by itself. ``sparse_as_dense``: on TensorFlow, make
    dense tensors of the gradients of embeddings instead of gathering their rows. Devices and groups mean nothing:
    gradients travel together. Raises ``UsageError`` for what cannot be.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"DistributedOptimizer() of a {type(optimizer).__name__}: give an optimizer of Keras 3, as "
            "keras.optimizers.SGD(0.1)"
        )
    inner = getattr(optimizer, "inner_optimizer", None)  # of scaled losses
    if isinstance(optimizer, _Reducing) or isinstance(inner, _Reducing):
        raise UsageError("DistributedOptimizer of a distributed optimizer: wrap it once")
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(f"DistributedOptimizer(op={ReduceOp(op).label}): it takes Average and Sum")
    refuse_impossible_groups(num_groups, groups)
    passes = _accumulating(optimizer, backward_passes_per_step, average_aggregated_gradients)
    how = gradient_reduction(op, gradient_predivide_factor)
    label = name or type(optimizer).__name__  # not the optimizer's name, which counts those of this process
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
    """``DistributedOptimizer`` that leaves the gradients of some layers on their rank.

    >>> hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[model.layers[0]])
    """
    return DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients,
        local_layers=local_layers,
    )  # fmt: skip


def _accumulating(optimizer: keras.optimizers.Optimizer, passes: int, averages: bool) -> float:
    """Have Keras accumulate, which makes means; returns the factor that makes of these what was asked for."""
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
    """Variables that are each rank's own; raises ``UsageError`` where ``optimizer`` would mix them with others."""
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
    """An object with the state of ``optimizer``, and of a class in which gradients are reduced first."""
    made: Any = object.__new__(_reducing(type(optimizer), distribution))
    object.__setattr__(made, "__dict__", vars(optimizer))  # the same, not a copy: it may not be built yet
    return cast("Optimizer", made)


def _reducing(kind: type, distribution: Distribution) -> type:
    """A class of optimizers like ``kind``, in which gradients are reduced first."""
    # Keras saves an optimizer by the name and module of its class.
    content = {"__module__": kind.__module__, "_farandole": distribution, "_farandole_kind": kind}
    return type(kind.__name__, (_Reducing, kind), content)


class _Reducing:
    """Reduction of gradients in front of the methods of an optimizer's own class."""

    # Each object has a class of its own, which has these: Keras would track them in an object as a part of the model.
    _farandole: ClassVar[Distribution]
    _farandole_kind: ClassVar[type]

    @backend.as_written
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce the gradients and apply them. Collective."""
        with self._farandole.reducing(self, grads, trainable_variables) as reduced:
            super().apply(reduced, trainable_variables)  # type: ignore[misc]

    @backend.as_written
    def stateless_apply(self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        """``apply`` of JAX: everything comes in, and everything goes out."""
        with self._farandole.reducing(self, grads, None, trainable_variables) as reduced:
            return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]

    def register_local_var(self, var: Any) -> None:
        """Leave the gradients of a variable on their rank, as those of ``local_layers``; before the first step."""
        _require_no_mix(self)
        if self._farandole.is_scaled:
            raise UsageError(_SCALES_LOCAL)
        self._farandole.add_local(var)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """See Keras; before 3.11 a ``LossScaleOptimizer`` around this tells it nothing else."""
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
        """Have a ``LossScaleOptimizer`` that has called, as it is put around this, reduce before it decides."""
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
