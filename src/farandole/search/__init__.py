"""Search for hyper-parameters on a pool of warm workers; the package can be called.

farandole.search(train, {"lr": (1e-4, 1.0)}, trials=32, pool=8, epochs=27)
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, final

__all__ = ["FixedList", "HostPool", "LocalPool", "SearchResult", "SearchedTrial", "Space", "Trial", "search"]

_HOMES = {
    "Advisor": "advisor",
    "FixedList": "advisor",
    "HostPool": "host_pool",
    "LocalPool": "pools",
    "Pool": "pools",
    "SearchResult": "api",
    "SearchedTrial": "api",
    "Space": "space",
    "Trial": "trial",
    "search": "api",
}


@final
class _CallableModule(ModuleType):
    """Module that can also be called: ``farandole.search(...)`` beside ``farandole.search.Space``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``farandole.search.search``."""
        return importlib.import_module("farandole.search.api").search(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Load a public name on first access, because a worker needs none of them."""
        if name in _HOMES:
            return getattr(importlib.import_module(f"farandole.search.{_HOMES[name]}"), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _CallableModule
