"""Ranks that are forked, and jobs that are watched while they run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farandole.testing.fork_server import fork_server
from tests.support import tiers
from tests.support.frameworks import with_numpy_alone
from tests.support.launch.running import job

__all__ = ["job"]


@pytest.fixture(scope="session", autouse=True)
def forks_ranks() -> Iterator[None]:
    """One server for all tests of this process, with NumPy alone."""
    with fork_server(with_numpy_alone()):
        tiers.needs_its_tier()  # that the server was started says nothing of the test that came first
        yield
