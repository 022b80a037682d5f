"""Hosts, Slurm and environments; and jobs that are watched while they run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from tests.support.cluster.running import start
from tests.support.compat.site_in_process import horovod_site
from tests.support.launch.running import job
from tests.support.paths import ROOT
from workbench.cluster import Cluster, SlurmCluster, UnavailableError

__all__ = ["horovod_site", "job", "start"]

_Made = TypeVar("_Made", Cluster, SlurmCluster)


@pytest.fixture(scope="session")
def mxnet_python() -> str:
    """Interpreter of the environment that ``make mxnet`` sets up, for ``launch(..., python=mxnet_python)``; or skip."""
    environment = ROOT / os.environ.get("MXNET_VENV", ".venv-mxnet")
    if not (stamp := environment / ".farandole-installed").exists():
        pytest.skip("MXNet needs an environment of its own, and there is none here: make mxnet")
    if stamp.stat().st_mtime < max(source.stat().st_mtime for source in (ROOT / "native").glob("*.?pp")):
        pytest.skip("the environment of MXNet has an older native core than this: make mxnet")
    return str(environment / "bin" / "python")


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """``head``, ``node1``, ``node2`` for the tests of a module, which leave them as they were.

    Four nodes: ``pytestmark = pytest.mark.parametrize("cluster", [4], indirect=True)``.
    """
    with _or_skip(Cluster, getattr(request, "param", 2)) as made:
        yield made


@pytest.fixture(scope="module")
def slurm(request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """The same under Slurm: ``slurm.run(["srun", ...])``, ``slurm.cluster``."""
    with _or_skip(SlurmCluster, getattr(request, "param", 2)) as made:
        yield made


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """``make_cluster(2)``: hosts for one test, which may do to them what it likes."""
    with contextlib.ExitStack() as stack:
        yield lambda nodes, **options: stack.enter_context(_or_skip(Cluster, nodes, **options))


@pytest.fixture
def make_slurm() -> Iterator[Callable[..., SlurmCluster]]:
    """The same under Slurm."""
    with contextlib.ExitStack() as stack:
        yield lambda nodes, **options: stack.enter_context(_or_skip(SlurmCluster, nodes, **options))


def _or_skip(kind: Callable[..., _Made], nodes: int, **options: Any) -> _Made:
    try:
        return kind(nodes, **options)
    except UnavailableError as error:
        pytest.skip(str(error))
