"""Python loads this first where ``tests.frameworks.lean`` says so: packages in ``TESTS_WITHOUT`` are not found."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_ABSENT = frozenset(os.environ.get("TESTS_WITHOUT", "").split())


class _LeanFinder(PathFinder):
    """What finds packages on the path, but for those. (``None`` in ``sys.modules`` confuses scikit-learn.)"""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname in _ABSENT else super().find_spec(fullname, path, target)


sys.meta_path[:] = [_LeanFinder if finder is PathFinder else finder for finder in sys.meta_path]
