"""Variables of Keras as arrays of NumPy: broadcast, kept and handed over, whatever the backend."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt

from farandole.adapters.numpy import verbs
from farandole.collective import Kind
from farandole.errors import UnsupportedError
from farandole.runtime.session.init import takes_part
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

AnyArray: TypeAlias = npt.NDArray[Any]


def of_model(model: keras.Model) -> list[Any]:
    """The variables of a model that ranks share: not the states of its random layers, as masks should differ."""
    return [v for v in model.variables if not is_seed(v)]


def own_of(model: keras.Model) -> list[Any]:
    """The variables of a model that each rank has for itself."""
    return [v for v in model.variables if is_seed(v)]


def path_of(variable: Any) -> str:
    """The path of a variable, without the numbers by which Keras counts the layers that this process has made."""
    return re.sub(r"_\d+(?=[/_]|$)", "", variable.path)


def is_seed(variable: Any) -> bool:
    """True for the state of a random layer."""
    found: bool = variable.path.endswith("seed_generator_state")
    return found


def of_optimizer(optimizer: Any, model: keras.Model) -> list[Any]:
    """The variables of an optimizer, which is built for ``model`` if it is not yet."""
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return list(optimizer.variables)


def of_both(model: keras.Model) -> list[Any]:
    """The variables of a model that ranks share, and those of its optimizer if it is compiled."""
    optimizer = getattr(model, "optimizer", None)
    return of_model(model) + (of_optimizer(optimizer, model) if optimizer is not None else [])


def steps_of(optimizer: Any) -> int:
    """Number of batches whose gradients an optimizer has got, but for those that scaled losses have skipped."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return int(np.asarray(keras.ops.convert_to_numpy(inner._iterations)))  # ``iterations`` counts whole accumulations


def read(variables: Sequence[Any]) -> list[AnyArray]:
    """Copies of the values."""
    return [np.array(keras.ops.convert_to_numpy(variable), order="C") for variable in variables]


def write(variables: Sequence[Any], arrays: Sequence[AnyArray]) -> None:
    """Assign the values."""
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Give the variables on every rank of ``process_set`` the values that they have on ``root_rank``. Collective.

    >>> hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    """
    if takes_part(process_set, "broadcast") and len(process_set.ranks) > 1:
        with verbs.telling(Kind.BROADCAST, "keras.variables", process_set):
            values = read(variables)
        verbs.broadcast(values, root_rank, "keras.variables", process_set, in_place=True).run()
        write(variables, values)


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
