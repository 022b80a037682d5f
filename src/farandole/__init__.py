"""Data-parallel deep learning whose workers come and go: the front door.

    import farandole.torch as hvd          # in a training script
    farandole.run(train, np=4)             # from Python: N workers, their results in rank order

No framework is imported here, and nothing is started.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from farandole.errors import (
    AbortError,
    CollectiveError,
    ControlError,
    DivergenceError,
    DuplicateNameError,
    EngineError,
    FarandoleError,
    HorovodInternalError,
    MismatchError,
    NotInitializedError,
    RemoteError,
    SettingsError,
    StallError,
    StartError,
    UnsupportedError,
    UsageError,
)
from farandole.version import __version__

if TYPE_CHECKING:
    from farandole.launch.function.function import run as run

__all__ = [
    "AbortError",
    "CollectiveError",
    "ControlError",
    "DivergenceError",
    "DuplicateNameError",
    "EngineError",
    "FarandoleError",
    "HorovodInternalError",
    "MismatchError",
    "NotInitializedError",
    "RemoteError",
    "SettingsError",
    "StallError",
    "StartError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "run",
]


def __getattr__(name: str) -> object:
    """``run`` brings the launcher along, which a worker has no use for: it is loaded when first asked for."""
    if name == "run":
        return importlib.import_module("farandole.launch.function.function").run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
