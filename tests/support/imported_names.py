"""Check of imports, in a process that loads frameworks: reads (page, module, names) as JSON, prints what is missing."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from types import ModuleType


def has(module: ModuleType, name: str) -> bool:
    """True for what is in a module, for a module in a package, and for all of it."""
    is_package = hasattr(module, "__path__")
    return (
        name == "*"
        or hasattr(module, name)
        or (is_package and importlib.util.find_spec(f"{module.__name__}.{name}") is not None)
    )


if __name__ == "__main__":
    for page, module, names in json.load(sys.stdin):
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != "mxnet":  # which has an environment of its own, where tests import the same
                print(f"{page}: {error}")
            continue
        for name in names:
            if not has(found, name):
                print(f"{page}: {module} has no {name}")
