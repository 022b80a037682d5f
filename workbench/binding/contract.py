"""The contract of bindings, to run in every rank of a job: ``farandole run -np 2 python check.py``.

    hvd.init()
    for case, wrong in run_contract(NumpyUnderTest()).items():
        assert not wrong, f"{case}: {wrong}"

A case is a function of a ``BindingUnderTest``; every rank runs all of them in the same order, and asserts. The first
failure ends a rank's run, because the other ranks could only wait for that rank in the next case.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

from workbench.binding import exchanges, gradients, jobs, reductions, refusals, states, training
from workbench.binding.under_test import BindingUnderTest

Case: TypeAlias = Callable[[BindingUnderTest], None]

MODULES = (reductions, exchanges, refusals, gradients, training, states, jobs)
"""Groups of cases; a case that needs more of a binding than ``BindingUnderTest`` goes into a group of its own."""


def cases(module: ModuleType) -> dict[str, Case]:
    """Public functions of a module that take a binding and nothing else, by name."""
    found = {name: thing for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__}
    return {name: thing for name, thing in found.items() if not name.startswith("_") and _is_case(thing)}


def _is_case(thing: object) -> bool:
    code = getattr(thing, "__code__", None)
    return code is not None and code.co_varnames[: code.co_argcount] == ("b",)


CASES: dict[str, Case] = {name: case for module in MODULES for name, case in cases(module).items()}
"""All cases, in the order in which they run."""


def run_contract(binding: BindingUnderTest) -> dict[str, str]:
    """Run all cases in the job of this process; returns "" or a traceback for each case that was started."""
    found: dict[str, str] = {}
    for name, case in CASES.items():
        try:
            case(binding)
        except Exception:
            found[name] = traceback.format_exc()
            return found
        found[name] = ""
    return found
