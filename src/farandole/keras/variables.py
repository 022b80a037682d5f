"""Keras variables as NumPy arrays, to broadcast, save and load them on any backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt

from farandole.adapters import layer_tables
from farandole.adapters.numpy import verbs
from farandole.collective import Kind
from farandole.errors import UnsupportedError, UsageError
from farandole.gradients.optimizer_key import without_numbers
from farandole.graphs.keras_variables import is_of_keras, is_seed
from farandole.keras.optimizer_tree import leaves
from farandole.runtime.collectives.objects import broadcast_object
from farandole.runtime.session.init import takes_part
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

AnyArray: TypeAlias = npt.NDArray[Any]


def of_model(model: keras.Model) -> list[Any]:
    """Variables of a model that ranks share: all but the seeds of random layers, because masks should differ."""
    return [v for v in model.variables if not is_seed(v)]


def own_of(model: keras.Model) -> list[Any]:
    """Variables of a model and its optimizers that ranks do not share."""
    return [v for v in model.variables if is_seed(v)] + local_of(model)


def path_of(variable: Any) -> str:
    """Path of a variable, without the numbers that Keras appends per process."""
    path: str = getattr(variable, "path", None) or variable.name  # optimizers accept TensorFlow variables, too
    return without_numbers(path)


def value_of(variable: Any) -> Any:
    """Backend variable or tensor in a Keras variable; on TensorFlow, ``variable`` may already be one."""
    return variable.value if is_of_keras(variable) else variable


def is_overwritten(variable: Any) -> bool:
    """True for a variable to which Keras assigns its gradient as the new value (scales of float8)."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def of_both(model: keras.Model) -> list[Any]:
    """Variables of a model without seeds of random layers, and of its built optimizers.

    Builds the optimizer of ``compile`` if needed. Raises ``UsageError`` for a model that is not built.
    """
    if not (model.built or _is_built_of_others(model)):
        raise UsageError(
            f"the model {model.name!r} is not built, so it has no variables yet: give it a keras.Input, or call it "
            "on a batch, before this (on TensorFlow, fit() builds it with its first step only)"
        )
    compiled = getattr(model, "optimizer", None)
    if compiled is not None and not compiled.built:
        compiled.build(model.trainable_variables)
    found = {id(v): v for v in of_model(model)}
    for optimizer in _optimizers_of(model).values():
        found |= {id(v): v for v in optimizer.variables}  # two objects may share variables
    return list(found.values())


def _is_built_of_others(model: keras.Model) -> bool:
    """True for a model without ``call`` whose layers are all built (a GAN that trains two models, for example)."""
    has_call = type(model).call not in (keras.Model.call, keras.layers.Layer.call)
    return not has_call and bool(model.layers) and all(layer.built for layer in model.layers)


def shared_of(model: keras.Model) -> list[Any]:
    """Variables of a model and its optimizers that ranks share, for checkpoints and states.

    Raises ``UsageError`` if an optimizer of the model is not built, because its variables are unknown.
    """
    local = set(map(id, local_of(model)))
    for name, optimizer in _optimizers_of(model).items():
        if not optimizer.built:
            raise UsageError(
                f"the model's {name!r} is an optimizer that is not built, so what it remembers cannot be kept: call "
                "its build() with the variables that it trains, before this"
            )
    return [v for v in of_both(model) if id(v) not in local]


def local_of(model: keras.Model) -> list[Any]:
    """Variables with local gradients, and the optimizers' state for them."""
    shared = of_both(model)
    local = {key for optimizer in _optimizers_of(model).values() for key in _local_ids(optimizer)}
    return [v for v in shared if id(v) in local]


def _local_ids(optimizer: Any) -> set[int]:
    """The ``id`` of each variable with local gradients, and of the optimizer's state for it."""
    distribution = getattr(optimizer, "_farandole", None)
    local = {id(v) for v in distribution.local} if distribution is not None else set()
    own = set(local)
    for leaf in leaves(optimizer) if local and optimizer.built else ():
        trained = getattr(leaf, "_trainable_variables", ())
        # Optimizers keep momenta and other state in lists, in the order of the variables.
        kept = [each for each in vars(leaf).values() if isinstance(each, list) and len(each) == len(trained)]
        for slots in kept:
            if slots is not leaf._variables:
                own |= {id(slot) for slot, v in zip(slots, trained, strict=True) if id(v) in local}
    return own


def _optimizers_of(model: keras.Model) -> dict[str, Any]:
    """Optimizers of a model by the names of its attributes; for inner models, only built ones."""
    found: dict[str, Any] = {}
    for name, value in vars(model).items():
        if name.startswith("_self_"):  # TensorFlow's own list of the other attributes
            continue
        listed = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        of_name = [each for each in listed if isinstance(each, keras.optimizers.Optimizer)]
        found |= {f"{name}[{i}]" if i else name: each for i, each in enumerate(of_name)}
    for i, layer in enumerate(model.layers):
        if isinstance(layer, keras.Model):
            found |= {f"{i}.{name}": each for name, each in _optimizers_of(layer).items() if each.built}
    return found


def methods_of(model: keras.Model) -> list[str]:
    """Class names of a model's optimizers, to distinguish those that keep arrays of the same shapes."""
    return [type(leaf).__name__ for each in _optimizers_of(model).values() for leaf in leaves(each)]


def steps_of(optimizer: Any) -> int:
    """Number of batches whose gradients an optimizer has received, without those skipped by loss scaling."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return int(np.asarray(keras.ops.convert_to_numpy(inner._iterations)))  # ``iterations`` counts whole accumulations


def read(variables: Sequence[Any]) -> list[AnyArray]:
    """Copy the values of ``variables``."""
    return [np.array(keras.ops.convert_to_numpy(variable), order="C") for variable in variables]


def write(variables: Sequence[Any], arrays: Sequence[AnyArray]) -> None:
    """Assign values, without a refresh of constants that layers derive from them; see ``load``."""
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def load(variables: Sequence[Any], arrays: Sequence[AnyArray]) -> None:
    """Assign values, and refresh constants that layers derive from them."""
    write(variables, arrays)
    layer_tables.refresh(variables)


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Broadcast the values of variables on ``root_rank`` to every rank of ``process_set``. Collective.

    >>> hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)

    Seeds of random layers are skipped: otherwise all ranks would drop out the same units from then on. Vocabularies and
    boundaries of ``Discretization`` are not variables: ``BroadcastGlobalVariablesCallback`` broadcasts them.
    """
    variables = [variable for variable in variables if not is_seed(variable)]
    if takes_part(process_set, "broadcast") and len(process_set.ranks) > 1:
        with verbs.telling(Kind.BROADCAST, "keras.variables", process_set):
            values = read(variables)
        verbs.broadcast(values, root_rank, "keras.variables", process_set, in_place=True).run()
        load(variables, values)


def broadcast_tables(model: keras.Model, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Broadcast the state of the layers of ``model`` outside variables from ``root_rank``. Collective."""
    if layer_tables.has_any(model) and takes_part(process_set, "broadcast") and len(process_set.ranks) > 1:
        found = broadcast_object(layer_tables.read(model), root_rank, "keras.tables", process_set)
        layer_tables.write(model, found)


def broadcast_global_variables(root_rank: int) -> None:
    """Raise ``UnsupportedError``, like Horovod in eager mode, because Keras 3 has no list of all variables."""
    raise UnsupportedError(
        f"broadcast_global_variables({root_rank}): Keras 3 does not know all variables. Pass "
        "hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank) to fit(), or call "
        "hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank)"
    )


def settle(model: Any) -> None:
    """Update the variables during ``fit``: on JAX, ``fit`` keeps the values elsewhere, and reads them back later."""
    synced = getattr(model, "jax_state_sync", None)
    if synced is not None:
        synced()
