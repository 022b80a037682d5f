"""Modules of Horovod 0.28.1 that this release of Farandole lacks: importing one raises an error with the reason."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import final

from farandole.version import __version__

_LATER = "comes in a later release"
_NEVER = "is not planned"
_INSIDE = "starts jobs in Horovod's way; here the command farandole run does, or horovodrun, or horovod.run()"
_FATE = {
    "horovod.tensorflow.data": _NEVER,
    "horovod._keras": _LATER,
    **dict.fromkeys((f"horovod.spark.{name}" for name in ("common", "keras", "lightning", "torch")), _NEVER),
    **dict.fromkeys(("horovod.ray.elastic", "horovod.ray.elastic_v2", "horovod.spark.runner"), _NEVER),
    **dict.fromkeys(
        (
            *(f"horovod.runner.{name}" for name in ("common", "driver", "elastic", "http", "task")),
            *(f"horovod.runner.{name}" for name in ("gloo_run", "js_run", "mpi_run", "run_task", "task_fn")),
            *(f"horovod.runner.util.{name}" for name in ("cache", "lsf", "network", "remote", "streams")),
        ),
        _INSIDE,
    ),
}


def explain(module: str) -> str:
    """Reason why ``module`` is missing, with alternatives; "" if Horovod has no such module either."""
    fate = next((why for name, why in _FATE.items() if f"{module}.".startswith(f"{name}.")), "")
    return fate and (
        f"{module} is not in Farandole {__version__}, which has horovod.torch, .tensorflow, .keras and .mxnet: "
        f"it {fate}. "
        "To use an installed Horovod instead, start the script without --horovod"
    )


@final
class AbsentModules(MetaPathFinder):
    """Last import finder: raises ``ModuleNotFoundError`` for absent modules, as guards around imports expect."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``importlib``; finds nothing."""
        if why := explain(fullname):
            raise ModuleNotFoundError(why, name=fullname)
        return None


def explain_absent_modules() -> None:
    """Install the finder for absent modules."""
    if not any(type(finder).__module__ == __name__ for finder in sys.meta_path):
        sys.meta_path.append(AbsentModules())
