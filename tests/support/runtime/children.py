"""A worker whose children call ``init()`` with the variables that they inherit: ``python children.py [elastic]``.

As a child it prints how that went: ``joined``, or the error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from farandole.cluster.environment import LAUNCHED
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState
from farandole.errors import FarandoleError
from farandole.runtime.session.init import Session, current, init, shutdown
from workbench.jobs import NumpyCalls

QUICKLY_S = 20.0
"""For the start of an interpreter on a busy machine; who waits for others would take as long as the start time-out."""

CHILD = [sys.executable, os.path.abspath(__file__), "child"]
ORPHAN = CHILD if LAUNCHED in os.environ else ["true"]
"""Only the controller can know one that is no descendant any more; where rank 0 has started it, an orphan of that
would start another one."""

SESSIONS: list[Session] = []


def join() -> str:
    """What a child comes to."""
    begin_s = time.monotonic()
    try:
        init()
    except FarandoleError as error:
        return f"{type(error).__name__} {error}" if time.monotonic() < begin_s + QUICKLY_S else f"late: {error}"
    joined = f"joined {current().topology.rank} of {current().topology.size}"
    shutdown()
    return joined


def fork(act: Callable[[], str]) -> str:
    """What a forked child comes to."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(reader)
        try:
            os.write(writer, act().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as told:
        said = told.read()
    os.waitpid(pid, 0)
    return said


def use() -> str:
    """What a forked child comes to that does not call ``init``."""
    return caught(lambda: NumpyCalls().allreduce("x", np.ones(1)))


def use_session() -> str:
    """The same, with what it has of its parent."""
    return caught(SESSIONS[-1].barrier)


def inherit() -> str:
    """What a child comes to that waits for what its parent has begun; the others begin it later."""
    begun = NumpyCalls().reduction("late", np.ones(1000))
    if current().topology.rank:
        add("gate")
        NumpyCalls().submit(begun).wait()
        return ""
    handle = NumpyCalls().submit(begun)
    said = fork(lambda: caught(handle.wait))
    add("gate")
    handle.wait()
    return said


def caught(act: Callable[[], object]) -> str:
    """The error that it raises."""
    try:
        act()
    except FarandoleError as error:
        return f"{type(error).__name__} {error}"
    return "nothing"


def add(name: str) -> None:
    """A collective of all, on what is here and in an engine."""
    for count in (1, 1000):
        x = np.ones(count)
        NumpyCalls().allreduce(f"{name}.{count}", x)
        assert x[0] == current().topology.size


def say(what: str, text: str) -> None:
    """One line."""
    os.write(1, f"{what}: {text}\n".encode())


def disturb() -> None:
    """Have children of all kinds, and go on."""
    SESSIONS.append(current())
    before, me = current().generation, f"process {os.getpid()},"
    orphan = subprocess.Popen(["bash", "-c", f"{' '.join(ORPHAN)} &"], stdout=subprocess.PIPE, text=True)
    said = {
        "spawned": subprocess.run(CHILD, stdout=subprocess.PIPE, text=True, check=True).stdout,
        "grandchild": subprocess.run(
            ["sh", "-c", f"true; {' '.join(CHILD)}; true"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout,
        "orphan": orphan.communicate()[0],
        "forked": fork(join),
        "uninvited": fork(use),
        "inherited": inherit(),
        "session": fork(use_session),
    }
    add("after")
    for what, text in said.items():
        say(what, text.strip().replace(me, "PARENT,"))
    say("generation", f"{current().generation - before} since")


@run
def train(_: ObjectState) -> None:
    """The same in an elastic job."""
    add("before")
    disturb()


def main() -> None:
    """A worker."""
    init()
    if "elastic" in sys.argv:
        train(ObjectState(step=0))
        shutdown()
        return
    add("before")
    disturb()
    current().barrier()
    shutdown()
    if "then" in sys.argv:
        say("then", subprocess.run(CHILD, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
        say("forked then", fork(join))
    init()
    add("again")
    shutdown()


if __name__ == "__main__":
    if "child" in sys.argv:
        print(join(), flush=True)
    else:
        main()
