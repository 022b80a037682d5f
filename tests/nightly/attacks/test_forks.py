"""Children that a worker forks while Farandole's threads run in it: they end, and their parents notice nothing."""

from __future__ import annotations

import pytest

from tests.support.launching import Launch

TIMES = 5
SCRIPT = f"""
import os, select, subprocess, sys, threading
import numpy as np
from farandole.runtime.session.init import current, init, is_initialized, shutdown
from workbench.jobs import NumpyCalls

WAIT_MS = 60_000

def nothing():
    pass

def run_a_command():
    assert subprocess.run(["echo", "fine"], stdout=subprocess.PIPE, check=True).stdout == b"fine\\n"

def shut_down():
    shutdown()
    assert not is_initialized()

def use_threads():
    thread = threading.Thread(target=run_a_command)
    thread.start()
    thread.join()

def children():
    for do in {TIMES} * (nothing, run_a_command, shut_down, use_threads):
        if (pid := os.fork()) == 0:
            do()
            sys.exit(7)  # by the interpreter's own end, with all that is registered for it
        ended = select.poll()
        child = os.pidfd_open(pid)
        ended.register(child, select.POLLIN)
        if not ended.poll(WAIT_MS):
            os.kill(pid, 6)
            os.write(1, f"hangs: {{do.__name__}}\\n".encode())
        os.close(child)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != 7:
            os.write(1, f"{{do.__name__}} ended with {{code}}\\n".encode())

def reduce():
    values = np.zeros(1)
    while values[0] < size:  # until all ranks are through with their children
        for count in (1, 10_000):
            values = np.full(count, float(is_over.is_set()))
            NumpyCalls().allreduce(f"is over {{count}}", values)

init()
size, is_over = current().topology.size, threading.Event()
thread = threading.Thread(target=reduce)
thread.start()
children()
is_over.set()
thread.join()
values = np.full(1000, 2.0)
NumpyCalls().allreduce("after", values)
assert (values == 2.0 * size).all()
shutdown()
os.write(1, b"right\\n")
"""


@pytest.mark.parametrize("options", [("--engine", "shm"), ("--engine", "tcp"), ("--min-np", "2")], ids=" ".join)
def test_forked_children_end_whatever_they_do_and_parents_go_on(launch: Launch, options: tuple[str, ...]) -> None:
    assert launch(2, SCRIPT, options=options).ok().lines() == ["right", "right"]
