"""The examples in docstrings do what they say, where they need neither a job nor a framework."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.support.paths import ROOT

PACKAGES = (ROOT / "src" / "farandole", ROOT / "workbench")
ELSEWHERE = ("compat", "jax", "keras", "mxnet", "numpy", "tensorflow", "torch")
IN_A_JOB = {
    "farandole.gradients.reduced",
    "farandole.checkpoint.checkpoints",
    "farandole.checkpoint.codec",
    "farandole.elastic.worker.run",
    "farandole.gradients.join",
    "farandole.gradients.noise",
    "farandole.graphs.library",
    "farandole.runtime.collectives.basics",
    "farandole.runtime.collectives.handles",
    "farandole.runtime.collectives.objects",
    "farandole.runtime.collectives.ops",
    "farandole.runtime.session.process_sets",
    "farandole.runtime.session.init",
    "farandole.search.trial",
    "workbench.controllers",
}
"""Modules with examples of what only the ranks of a job can do, or with tensors."""


def with_examples() -> list[str]:
    """The modules whose examples can be run here."""
    files = [(package.parent, path) for package in PACKAGES for path in sorted(package.rglob("*.py"))]
    paths = [path.relative_to(folder) for folder, path in files if ">>> " in path.read_text()]
    names = [".".join(path.with_suffix("").parts) for path in paths if path.parts[1] not in ELSEWHERE]
    return [name for name in names if name not in IN_A_JOB]


@pytest.mark.parametrize("name", with_examples())
def test_examples_of_a_module(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed
