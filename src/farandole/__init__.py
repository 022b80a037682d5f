"""Data-parallel deep learning whose workers come and go: the front door.

    import farandole.torch as hvd          # in a training script
    farandole.run(train, np=4)             # from Python: N workers, their results in rank order
    farandole.search(train, space, pool=8) # hyper-parameters: many trials on a pool of workers
    job = farandole.launch(train, np=4)    # as run, while this program goes on

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
    from farandole.monitor.launching import launch as launch
    from farandole.search.api import search as search

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
    "launch",
    "run",
    "search",
]


def __getattr__(name: str) -> object:
    """``run``, ``launch`` and ``search`` bring along what a worker has no use for: they are loaded when asked for."""
    if name == "run":
        return importlib.import_module("farandole.launch.function.function").run
    if name in ("launch", "search"):  # packages, which can be called
        return importlib.import_module(f"farandole.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
