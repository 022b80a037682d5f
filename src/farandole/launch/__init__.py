"""Floor 8: launch. One command becomes a job of many workers, and the job an exit code.

farandole.launch(train, np=2)       # the package itself can be called: see ``farandole.monitor.launching``
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any, final


@final
class _CallablePackage(types.ModuleType):
    """This package, which has the name of a function of the front door."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``launch`` of ``farandole.monitor.launching``, which is loaded by then only."""
        return importlib.import_module("farandole.monitor.launching").launch(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
