"""Data-parallel deep learning with workers that may join and leave: the public package.

    import farandole.torch as hvd          # in a training script
    farandole.run(train, np=4)             # from Python: N workers, their results in rank order
    farandole.search(train, space, pool=8) # hyper-parameters: many trials on a pool of workers
    job = farandole.launch(train, np=4)    # like run, in the background

This import loads no framework, and starts no thread or process.
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
    """Load ``run``, ``launch`` and ``search`` on first use, because workers do not need their modules."""
    if name == "run":
        return importlib.import_module("farandole.launch.function.function").run
    if name in ("launch", "search"):  # callable packages
        return importlib.import_module(f"farandole.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
