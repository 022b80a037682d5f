"""Scripts with signal handlers of their own, which are called all the time, in both lanes and in elastic jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.launch.running import StartJob
from tests.support.launching import Launch

SCRIPT = """
import faulthandler, os, signal, socket, sys, threading
import numpy as np
from farandole.collective import DType, ReduceOp, Reduction
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls

OWN = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)
got, pair = set(), socket.socketpair()

def handle(number, frame):
    got.add(number)

def install():
    for number in OWN:
        signal.signal(number, handle)
    pair[1].setblocking(False)
    signal.set_wakeup_fd(pair[1].fileno(), warn_on_full_buffer=False)
    faulthandler.enable()

def unchanged():
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    return fd == pair[1].fileno() and all(signal.getsignal(number) is handle for number in OWN)

if sys.argv[1] == "before":
    install()
init()
if sys.argv[1] == "after":
    install()
assert unchanged()
who, do, over = current().topology, NumpyCalls(), threading.Event()

def shoot():
    # One by one: faulthandler gives handlers a small stack, which five at once overflow where frames are large.
    while not over.is_set():
        for number in OWN[:5]:
            os.kill(os.getpid(), number)
            over.wait(0.0005)

shooter = threading.Thread(target=shoot)
shooter.start()
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
total, engine = sum(range(who.size)), current().planned.engine(0, "lane")
lane = current().planned.lane(0, "lane")
memory = np.zeros(50_000, np.float32)
for step in range(150):
    for name, count in (("small", 5), ("large", 200_000)):
        values = np.full(count, who.rank, np.float32)
        do.allreduce(name, values)
        assert (values == total).all()
    memory[:] = who.rank
    with lane.next(f"step {step}"):
        engine.allreduce(do.array(memory), Reduction(ReduceOp.SUM))
    assert (memory == total).all()
over.set()
shooter.join()
signal.setitimer(signal.ITIMER_REAL, 0)
assert got >= {*OWN[:5], signal.SIGALRM}, got
assert unchanged()
shutdown()
assert unchanged()
print("fine", flush=True)
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("engine", ["shm", "tcp"])
def test_handlers_are_called_and_stay_and_numbers_are_right(launch: Launch, when: str, engine: str) -> None:
    assert launch(2, SCRIPT, options=("--engine", engine), arguments=(when,)).ok().lines() == ["fine", "fine"]


ELASTIC = """
import os, signal, socket, subprocess, sys, threading
import torch
import farandole.torch as hvd

place = int(os.environ["FARANDOLE_WORKER_ID"])
OWN = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGALRM}
OWN -= {signal.SIGTERM} if place == 2 else set()  # which leaves when it is told to
got, pair, over = set(), socket.socketpair(), threading.Event()

def handle(number, frame):
    got.add(number)

def install():
    for number in OWN:
        signal.signal(number, handle)
    pair[1].setblocking(False)
    signal.set_wakeup_fd(pair[1].fileno(), warn_on_full_buffer=False)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    shooter.start()

def unchanged():
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    return fd == pair[1].fileno() and all(signal.getsignal(number) is handle for number in OWN)

def shoot():
    while not over.wait(0.005):
        for number in OWN - {signal.SIGALRM, signal.SIGCHLD}:
            os.kill(os.getpid(), number)

shooter = threading.Thread(target=shoot)
is_before = sys.argv[1] == "before" or sys.argv[1] == "both" and place % 2 == 0
if is_before:
    install()
hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
state = hvd.elastic.TorchState(model, optimizer, step=0, last=0)

@hvd.elastic.run
def train(state):
    if not is_before and not shooter.is_alive():
        install()
    while not state.last or state.step < state.last:
        if hvd.size() == 3 and state.step >= 120 and not state.last:
            state.last = state.step + 20  # that the newcomers train, too
        assert (model.weight == -state.step).all(), (model.weight, state.step)
        optimizer.zero_grad()
        model.weight.sum().backward()
        optimizer.step()
        state.step += 1
        number = hvd.allreduce(torch.full((300_000,), float(state.step)), name="large", op=hvd.Sum)
        assert (number == hvd.size() * state.step).all(), (number, state.step)
        if place == 1 and state.step == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        if place == 2 and state.step == 80:
            os.kill(os.getpid(), signal.SIGTERM)
        subprocess.run(["true"])
        state.commit()

try:
    train(state)
    assert got == OWN, got
    print("fine", state.step, flush=True)
finally:
    assert unchanged()
    hvd.shutdown()
    assert unchanged()
    over.set()
    shooter.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
"""


@pytest.mark.parametrize("when", ["both", "before", "inside"])
def test_an_elastic_job_whose_handlers_are_called_loses_no_step(job: StartJob, tmp_path: Path, when: str) -> None:
    (tmp_path / "script.py").write_text(ELASTIC)
    running = job(
        *("-np", "3", "--min-np", "2", "--blacklist-cooldown-range", "0", "0.3", "--hang-timeout", "60"),
        command=[sys.executable, "script.py", when],
        environment={"OMP_NUM_THREADS": "1"},
    )
    assert running.end() == 0, running.stderr
    assert running.stdout.count("fine") == 3, running.stdout + running.stderr
    assert "worker 1 on" in running.stderr
    assert "worker 2 on" in running.stderr
    assert "exited with code 143" in running.stderr
