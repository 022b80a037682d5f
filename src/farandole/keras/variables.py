"""Variables of Keras as arrays of NumPy: broadcast, kept and handed over, whatever the backend."""

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
    """The variables of a model that ranks share: not the states of its random layers, as masks should differ."""
    return [v for v in model.variables if not is_seed(v)]


def own_of(model: keras.Model) -> list[Any]:
    """The variables of a model, and of its optimizers, that each rank has for itself."""
    return [v for v in model.variables if is_seed(v)] + local_of(model)


def path_of(variable: Any) -> str:
    """The path of a variable, without the numbers by which Keras counts the layers that this process has made."""
    path: str = getattr(variable, "path", None) or variable.name  # optimizers take variables of TensorFlow, too
    return without_numbers(path)


def value_of(variable: Any) -> Any:
    """The backend's own variable, or tensor, of one of Keras, which on TensorFlow may be that already."""
    return variable.value if is_of_keras(variable) else variable


def is_overwritten(variable: Any) -> bool:
    """True for a variable whose gradient is what Keras assigns to it, as scales of float8."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def of_both(model: keras.Model) -> list[Any]:
    """The variables of a model but for states of random layers, and those of its optimizers, as far as they are built.

    The optimizer that it is compiled with is built if it is not yet. Raises ``UsageError`` for a model that is not.
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
    """True for a model without a ``call``, as those that train two others against each other, if these are built."""
    has_call = type(model).call not in (keras.Model.call, keras.layers.Layer.call)
    return not has_call and bool(model.layers) and all(layer.built for layer in model.layers)


def shared_of(model: keras.Model) -> list[Any]:
    """The variables of a model, and of its optimizers, that ranks share and that a training goes on with.

    Raises ``UsageError`` where the model has an optimizer of which nobody knows what it is for, as it is not built.
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
    """The variables that distributed optimizers leave to each rank, and what they keep for them."""
    shared = of_both(model)
    local = {key for optimizer in _optimizers_of(model).values() for key in _local_ids(optimizer)}
    return [v for v in shared if id(v) in local]


def _local_ids(optimizer: Any) -> set[int]:
    """``id`` of variables that are one rank's own, and of what the optimizer keeps for them."""
    distribution = getattr(optimizer, "_farandole", None)
    local = {id(v) for v in distribution.local} if distribution is not None else set()
    own = set(local)
    for leaf in leaves(optimizer) if local and optimizer.built else ():
        trained = getattr(leaf, "_trainable_variables", ())
        # Optimizers keep momenta and so on in lists, in the order of the variables.
        kept = [each for each in vars(leaf).values() if isinstance(each, list) and len(each) == len(trained)]
        for slots in kept:
            if slots is not leaf._variables:
                own |= {id(slot) for slot, v in zip(slots, trained, strict=True) if id(v) in local}
    return own


def _optimizers_of(model: keras.Model) -> dict[str, Any]:
    """Optimizers of a model by the names of its attributes; of models inside, those that are built."""
    found: dict[str, Any] = {}
    for name, value in vars(model).items():
        if name.startswith("_self_"):  # TensorFlow's own list of what the others are
            continue
        listed = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        of_name = [each for each in listed if isinstance(each, keras.optimizers.Optimizer)]
        found |= {f"{name}[{i}]" if i else name: each for i, each in enumerate(of_name)}
    for i, layer in enumerate(model.layers):
        if isinstance(layer, keras.Model):
            found |= {f"{i}.{name}": each for name, each in _optimizers_of(layer).items() if each.built}
    return found


def methods_of(model: keras.Model) -> list[str]:
    """Names of the classes of a model's optimizers: of several that keep arrays of the same shapes, the method."""
    return [type(leaf).__name__ for each in _optimizers_of(model).values() for leaf in leaves(each)]


def steps_of(optimizer: Any) -> int:
    """Number of batches whose gradients an optimizer has got, but for those that scaled losses have skipped."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return int(np.asarray(keras.ops.convert_to_numpy(inner._iterations)))  # ``iterations`` counts whole accumulations


def read(variables: Sequence[Any]) -> list[AnyArray]:
    """Copies of the values."""
    return [np.array(keras.ops.convert_to_numpy(variable), order="C") for variable in variables]


def write(variables: Sequence[Any], arrays: Sequence[AnyArray]) -> None:
    """Assign the values; what layers have made of the old ones stays, see ``load``."""
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def load(variables: Sequence[Any], arrays: Sequence[AnyArray]) -> None:
    """Assign values of another process or moment."""
    write(variables, arrays)
    layer_tables.refresh(variables)


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Give the variables on every rank of ``process_set`` the values that they have on ``root_rank``. Collective.

    >>> hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)

    States of random layers among them stay each rank's own: else all ranks would drop out the same units from then on.
    Vocabularies, and boundaries of ``Discretization``, are no variables: ``BroadcastGlobalVariablesCallback`` takes
    them along.
    """
    variables = [variable for variable in variables if not is_seed(variable)]
    if takes_part(process_set, "broadcast") and len(process_set.ranks) > 1:
        with verbs.telling(Kind.BROADCAST, "keras.variables", process_set):
            values = read(variables)
        verbs.broadcast(values, root_rank, "keras.variables", process_set, in_place=True).run()
        load(variables, values)


def broadcast_tables(model: keras.Model, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Have the layers of ``model`` keep, beside their variables, what they keep on ``root_rank``. Collective."""
    if layer_tables.has_any(model) and takes_part(process_set, "broadcast") and len(process_set.ranks) > 1:
        found = broadcast_object(layer_tables.read(model), root_rank, "keras.tables", process_set)
        layer_tables.write(model, found)


def broadcast_global_variables(root_rank: int) -> None:
    """Raise ``UnsupportedError``, as Horovod does in eager mode: Keras 3 has no list of all variables."""
    raise UnsupportedError(
        f"broadcast_global_variables({root_rank}): Keras 3 does not know all variables. Pass "
        "hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank) to fit(), or call "
        "hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank)"
    )


def settle(model: Any) -> None:
    """Bring the variables up to date in the middle of ``fit``, which on JAX has them elsewhere and then reads them."""
    synced = getattr(model, "jax_state_sync", None)
    if synced is not None:
        synced()
