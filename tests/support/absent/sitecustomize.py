"""Python loads this first where ``tests.support.frameworks.lean`` says so: packages in ``TESTS_WITHOUT`` are not found.

``torch._dynamo`` may be one of them: then ``uncompiled.py`` stands for it, as PyTorch asks it when nothing is compiled.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_ABSENT = frozenset(os.environ.get("TESTS_WITHOUT", "").split())
_UNCOMPILED = Path(__file__).with_name("uncompiled.py")


class _LeanFinder(PathFinder):
    """What finds packages on the path, but for those. (``None`` in ``sys.modules`` confuses scikit-learn.)"""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torch._dynamo" and fullname in _ABSENT:
            return spec_from_file_location(fullname, _UNCOMPILED)
        return None if fullname in _ABSENT else super().find_spec(fullname, path, target)


sys.meta_path[:] = [_LeanFinder if finder is PathFinder else finder for finder in sys.meta_path]
