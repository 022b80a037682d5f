"""Farandole for Keras 3, on any of its backends.

    import keras
    import farandole.keras as hvd

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size())), loss="mse")
    model.fit(x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()], verbose=hvd.verbose(1),
              callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])

``allreduce``, ``allgather``, ``broadcast`` and ``reducescatter`` take their arguments in the order of
``horovod.keras``; the other collectives come from the module of the backend, for example ``farandole.torch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

try:
    import keras as _keras  # noqa: F401 (keeps the public namespace small)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "farandole.keras needs Keras 3, which is not installed here: pip install 'farandole[keras]'", name="keras"
    ) from error

from farandole import data as data
from farandole.keras import callbacks as callbacks
from farandole.keras import collectives as _keras_collectives
from farandole.keras import elastic as elastic
from farandole.keras.backends import collectives as _collectives
from farandole.keras.callbacks import verbose as verbose
from farandole.keras.compression import KerasCompression as _KerasCompression
from farandole.keras.models import load_model as load_model
from farandole.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
from farandole.keras.variables import broadcast_global_variables as broadcast_global_variables
from farandole.keras.variables import broadcast_variables as broadcast_variables
from farandole.runtime.collectives.ops import PUBLIC as _PUBLIC

if _TYPE_CHECKING:
    from farandole.keras.collectives import allgather as allgather
    from farandole.keras.collectives import allreduce as allreduce
    from farandole.keras.collectives import broadcast as broadcast
    from farandole.keras.collectives import reducescatter as reducescatter
    from farandole.torch.mpi_ops import *  # type: ignore[assignment]  # noqa: F403
    from farandole.torch.mpi_ops import Compression as Compression
else:
    _binding = _collectives()
    globals().update({name: getattr(_binding, name) for name in _PUBLIC})
    globals()["Compression"] = _KerasCompression
    globals().update({name: getattr(_keras_collectives, name) for name in _keras_collectives.__all__})
    _own = (
        "DistributedOptimizer", "PartialDistributedOptimizer", "broadcast_global_variables", "broadcast_variables",
        "callbacks", "data", "elastic", "load_model", "verbose",
    )  # fmt: skip
    __all__ = sorted([*_PUBLIC, *_own])  # noqa: PLE0605
