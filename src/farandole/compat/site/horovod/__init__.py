"""Package ``horovod`` of Farandole, on the import path only on request (``farandole horovod --help``).

``__version__`` is the version of Horovod whose API this package has.
"""

from __future__ import annotations

from farandole.errors import NotInitializedError
from horovod._absent import explain_absent_modules
from horovod.runner import run

explain_absent_modules()
NotInitializedError.foreword = "Horovod has not been initialized; use hvd.init(). "  # clients search for this text

__version__ = "0.28.1"

__all__ = ["__version__", "run"]
