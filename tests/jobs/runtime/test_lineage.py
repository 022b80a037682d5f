"""The guard against children of a worker that call ``init``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from farandole.cluster.detect import detect
from farandole.cluster.environment import Environment
from farandole.runtime.coordination import forked_children
from tests.support.patience import PATIENCE_S
from tests.support.unix_sockets import names_held

RANK = {"FARANDOLE_RANK": "0", "FARANDOLE_SIZE": "1"}

ASK = f"""
from farandole.cluster.detect import detect
from farandole.runtime.coordination import forked_children
forked_children.require_no_ancestor(detect({RANK!r}))
"""


@pytest.fixture
def mine() -> Iterator[Environment]:
    """The environment of the only rank of a job, which this process does not hold afterwards."""
    yield detect(RANK)
    forked_children.release()


def asked_by_a_grandchild() -> str:
    """What it writes to standard error: nothing if it may call ``init``."""
    command = ["/bin/sh", "-c", '"$0" -c "$1"; exit', sys.executable, ASK]  # ``exit``: the shell stays its parent
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.stderr


def test_descendants_of_a_worker_are_refused_until_it_leaves(mine: Environment) -> None:
    assert asked_by_a_grandchild() == ""
    forked_children.hold(mine)
    assert f"a child of process {os.getpid()}, which is rank 0 of the job" in asked_by_a_grandchild()
    forked_children.release()
    assert asked_by_a_grandchild() == ""


def test_a_worker_takes_no_name_that_another_user_could_have_taken_first(mine: Environment) -> None:
    """Another user bound that of a task of ``srun``, or of the next generation, and so refused its worker."""
    before = names_held()
    forked_children.hold(mine)
    assert names_held() == before


def test_the_file_of_another_process_is_not_taken_for_ones_own(mine: Environment) -> None:
    """A forked child has a copy of it, for a moment."""
    forked_children.hold(mine)
    assert forked_children._is_held(forked_children._name(mine, os.getpid()), os.getpid())
    assert not forked_children._is_held(forked_children._name(mine, os.getppid()), os.getpid())
