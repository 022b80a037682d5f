"""The guard against children of a worker that call ``init``."""

from __future__ import annotations

import os
import socket

from farandole.cluster.detect import detect
from farandole.cluster.environment import Environment
from farandole.runtime.coordination import lineage


def environment() -> Environment:
    """The environment of the only rank of a job."""
    return detect({"FARANDOLE_RANK": "0", "FARANDOLE_SIZE": "1"})


def test_children_that_look_at_the_same_time_are_not_taken_for_their_parent() -> None:
    """Each looked by binding the name for a moment, in which another one found it taken."""
    mine = environment()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(lineage._name(mine, os.getppid()))
        lineage.require_no_ancestor(mine)


def test_however_many_ask_a_worker_is_found() -> None:
    mine = environment()
    lineage.hold(mine)
    name = lineage._name(mine, os.getpid())
    assert all(lineage._is_held(name) for _ in range(5))
    lineage.release()
    assert not lineage._is_held(name)
