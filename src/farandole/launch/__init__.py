"""Floor 8: launch. It runs one command as a job of many workers, with one exit code.

farandole.launch(train, np=2)       # the package is callable: see ``farandole.monitor.launching``
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any, final


@final
class _CallablePackage(types.ModuleType):
    """Module type of this package, which has the same name as the function ``farandole.launch``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``launch`` of ``farandole.monitor.launching``, which is imported on the first call."""
        return importlib.import_module("farandole.monitor.launching").launch(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
