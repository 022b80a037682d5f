"""The stub beside the native module says what is there: the same names, the same parameters."""

from __future__ import annotations

import ast
import re

from farandole.native import core
from tests.support.paths import ROOT

STUB = ROOT / "src/farandole/native/core.pyi"


def _declared() -> dict[str, list[str]]:
    """Every function and method of the stub with the names of its parameters; properties have none."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(STUB.read_text()).body:
        scope = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef):
                is_property = bool(function.decorator_list)
                found[scope + function.name] = [] if is_property else [a.arg for a in function.args.args]
    return found


def _present() -> dict[str, list[str]]:
    """The same, from what nanobind wrote in the docstrings."""
    found: dict[str, list[str]] = {}
    for name, value in vars(core).items():
        if name.startswith("_"):
            continue
        for attribute, member in vars(value).items() if isinstance(value, type) else [("", value)]:
            signature = str(member.__doc__).splitlines()[0] if member.__doc__ else ""
            arguments = re.match(r"\w+\((.*)\) ->", signature)
            if attribute.startswith("_") and not (attribute == "__init__" and arguments):
                continue
            names = re.findall(r"(?:^|, )(\w+)(?=[:,]|$)", arguments[1]) if arguments else []
            found[f"{name}.{attribute}".rstrip(".")] = names
    return found


def test_the_stub_declares_what_the_module_has() -> None:
    assert _declared() == _present()
