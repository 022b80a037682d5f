"""Search for hyper-parameters on a pool of warm workers; the package can be called.

farandole.search(train, {"lr": (1e-4, 1.0)}, trials=32, pool=8, epochs=27)
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, final

__all__ = [
    "FixedList",
    "HostPool",
    "LeasePool",
    "LocalPool",
    "SearchResult",
    "SearchedTrial",
    "Space",
    "Trial",
    "search",
]

_HOMES = {
    "Advisor": ("search.advisor", "Advisor"),
    "FixedList": ("search.advisor", "FixedList"),
    "HostPool": ("launch.providers.hosts", "HostProvider"),
    "LeasePool": ("search.lease_pool", "LeasePool"),
    "LocalPool": ("launch.providers.local", "LocalProvider"),
    "Pool": ("launch.providers.provider", "Provider"),
    "SearchResult": ("search.api", "SearchResult"),
    "SearchedTrial": ("search.api", "SearchedTrial"),
    "Space": ("search.space", "Space"),
    "Trial": ("search.trial", "Trial"),
    "search": ("search.api", "search"),
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
            module, its_name = _HOMES[name]
            return getattr(importlib.import_module(f"farandole.{module}"), its_name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _CallableModule
