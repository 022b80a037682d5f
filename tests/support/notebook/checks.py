"""Checks of engines that are ranks, in one kernel with three engines.

    python -m tests.support.notebook.checks [NAME ...]

Each prints its name and ``ok``. With ``--times N``, ``px_interrupt`` interrupts N times.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.notebook.kernel import SLOWNESS, Cell, Kernel
from tests.support.notebook.watching import px_watch, px_watch_ended, px_watch_late, px_watch_replaced

BEGIN = """
import ipyparallel as ipp, logging, time, os
import farandole, farandole.notebook
cluster = ipp.Cluster(engines="farandole", n=3, log_level=logging.ERROR)
rc = cluster.start_and_connect_sync()
ranks = farandole.notebook.attach(rc)
"""

SETUP = """
import os, sys, time, torch
import farandole.torch as hvd
hvd.init()
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
state = hvd.elastic.TorchState(model, optimizer, done=0)
steps = 0

def step():
    global steps
    optimizer.zero_grad()
    model(torch.ones(8, 4) + hvd.rank()).pow(2).mean().backward()
    optimizer.step()
    steps += 1

def train(count):
    for _ in range(count):
        step()

@hvd.elastic.run
def until(state, last):
    while state.done < last:
        step()
        state.done += 1
        state.commit()
        if state.done == 5:
            print("at five", flush=True)
"""
FUNCTIONS = """
def talk(seconds=1, answer=None):
    import os, time
    import farandole.numpy as hvd
    hvd.init()
    print("begun", flush=True)
    while answer is not None and not os.path.exists(answer):
        time.sleep(0.01)
    time.sleep(seconds)
    return hvd.rank()

def fail():
    raise ValueError('told so')  # the line of the cell
"""
SAID = re.compile(r"^\[stdout:(\d)\] (.*)$", re.MULTILINE)


def px(code: str, options: str = "") -> str:
    """A ``%%px`` cell."""
    return f"%%px {options}\n{code}"


def by_rank(cell: Cell) -> dict[int, list[str]]:
    """Lines that each rank has printed."""
    found: dict[int, list[str]] = {}
    for rank, line in SAID.findall(cell.ok().stdout):
        found.setdefault(int(rank), []).append(line)
    return found


def same_on_all(kernel: Kernel, what: str, ranks: int = 3) -> str:
    """The value of an expression, which all ranks have alike."""
    said = by_rank(kernel.run(px(f"print({what})")))
    assert sorted(said) == list(range(ranks)), said
    assert len({tuple(lines) for lines in said.values()}) == 1, said
    return said[0][0]


def px_fail(kernel: Kernel) -> None:
    """A rank that raises ends the cell on all, with its exception, and the next cell trains."""
    before = same_on_all(kernel, "steps")
    failing = "if hvd.rank() == 1:\n    raise ValueError('no data here')\ntrain(2)"
    kernel.run(px(failing)).fails("ValueError", "no data here", "rank 1").within(1.0)
    said = by_rank(kernel.run(px("train(3)\nprint(steps, hvd.size(), hvd.rank())")).within(1.0))
    assert said == {rank: [f"{int(before) + 3} 3 {rank}"] for rank in range(3)}, said
    # In the middle of a training, and in a forward pass alone.
    middle = "for i in range(4):\n    step()\n    if hvd.rank() == 2 and i == 1:\n        raise KeyError(i)"
    kernel.run(px(middle)).fails("KeyError").within(1.0)
    same_on_all(kernel, "model.weight.tolist()")
    kernel.run(px("train(2)")).ok()


def px_remedy(kernel: Kernel) -> None:
    """After a failed cell another optimizer of the model trains, though an error keeps the old one on some ranks."""
    anew = "optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))\n"
    failing = "if hvd.rank() == 1:\n    raise ValueError('no data here')\ntrain(2)"
    for _ in range(2):
        kernel.run(px(failing)).fails("ValueError", "no data here", "rank 1").within(1.0)
        kernel.run(px(f"{anew}train(2)")).within(1.0).ok()
        same_on_all(kernel, "model.weight.tolist()")
    # Between backward() and step(), where a script looks for NaN or clips: the others have stepped.
    between = "optimizer.zero_grad()\nmodel(torch.ones(8, 4) + hvd.rank()).pow(2).mean().backward()\n"
    clipped = "if hvd.rank() == 1:\n    raise FloatingPointError('nan')\noptimizer.step()\ntrain(1)"
    kernel.run(px(between + clipped)).fails("FloatingPointError", "rank 1").within(1.0)
    kernel.run(px("train(1)")).fails("a new DistributedOptimizer").within(1.0)
    same = "hvd.broadcast_parameters(model.state_dict(), 0)\nhvd.broadcast_optimizer_state(optimizer, 0)\n"
    kernel.run(px(f"{same}{anew}train(2)")).within(1.0).ok()
    same_on_all(kernel, "model.weight.tolist()")
    kernel.run(px(f"{anew}state = hvd.elastic.TorchState(model, optimizer, done=0)\ntrain(1)")).ok()


def px_wait(kernel: Kernel) -> None:
    """After a failed cell, a cell in which ranks wait for one of them says so while it runs."""
    kernel.run(px("if hvd.rank() == 1:\n    raise ValueError('no data here')\ntrain(2)")).fails("ValueError")
    waiting = "import threading\nif hvd.rank() == 1:\n    threading.Event().wait(4)\ntrain(1)"
    cell = kernel.run(px(waiting)).ok()
    told = r"\[stderr:0\] farandole: waiting after a fault: ranks 0, 2 on \S+ for rank 1 on \S+, .*, in the first "
    assert len(re.findall(told, cell.stderr)) == 1, cell.stderr


def execute_fail(kernel: Kernel) -> None:
    """A rank that raises in a cell of ``execute``, which has no mark, ends it on all, and the next one trains."""
    begin = """
engines = rc[:]
def failed(code):
    answer = engines.execute(code, block=False)
    assert answer.wait(60), "it goes on"
    return [] if answer.exception() is None else sorted(each[0] for each in answer.exception().elist)
"""
    kernel.run(begin).ok()
    raises = "if hvd.rank() == 1:\n    raise ValueError('no data here')\n"
    for code, ends in (
        (f"step()\n{raises}step()", ["AbortError", "AbortError", "ValueError"]),
        (f"{raises}step()", ["AbortError", "AbortError", "ValueError"]),
        (raises, ["ValueError"]),
    ):
        for _ in range(2):
            said = kernel.run(f"print(failed({code!r}), failed('train(2)'), failed('train(2)'))").ok().stdout
            found = said.replace("MismatchError", "AbortError") if len(ends) > 1 else said  # where one begins too late
            assert found.strip() == f"{ends} [] []", (code, said)
    same_on_all(kernel, "model.weight.tolist()")


def px_diverge(kernel: Kernel) -> None:
    """Cells that differ between ranks are refused, and nothing is summed."""
    kernel.run(px("x = = 1")).fails("SyntaxError")
    kernel.run(px("print(hvd.rank(), steps)", "--targets 1")).ok()
    kernel.run(px("train(1)")).ok()
    kernel.run(px("x = hvd.allreduce(torch.ones(2), op=hvd.Sum)", "--targets 0")).fails("some of the ranks").within(1.0)
    kernel.run(px("print(hvd.rank(), steps)", "--targets 1")).ok()
    kernel.run(px("if hvd.rank() != 1:\n    y = hvd.allreduce(torch.ones(3), op=hvd.Sum)")).fails(
        "deadlock", "rank 1", "has ended there"
    ).within(1.5)
    same_on_all(kernel, "hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()")
    # A cell queued behind a failure is skipped where that was, and must not sum without that rank.
    kernel.run(px("if hvd.rank() == 0:\n    raise OSError('disk')\ntime.sleep(0.3)", "--noblock -o one")).ok()
    kernel.run(px("z = hvd.allreduce(torch.ones(4), op=hvd.Sum)", "--noblock -o two")).ok()
    told = kernel.run("two.wait(60)\ntwo.get()").fails("[1:execute]", "[2:execute]").error
    assert told.count("was sent before") + told.count("OSError: disk") >= 2, told  # before or after rank 0 had failed
    same_on_all(kernel, "('z' in dir(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item())")


def px_interrupt(kernel: Kernel, times: int = 5) -> None:
    """An interrupt ends all ranks after the same step; a queued cell is not run."""
    kernel.run("ran = 0").ok()
    for _ in range(times):
        told: list[float] = []

        def interrupt(text: str, told: list[float] = told) -> None:
            if "going" in text and not told:
                told.append(time.monotonic())
                kernel.interrupt()

        # From a rank's first words on: where in the step that finds it, chance says.
        sent = kernel.send(px("step()\nprint('going', flush=True)\nwhile True:\n    step()"))
        queued = kernel.send("ran += 1")
        cell = kernel.receive(sent, interrupt).fails("KeyboardInterrupt")
        assert kernel.receive(queued).status == "aborted"
        assert told
        assert cell.ended_s - told[0] < 2.0 * SLOWNESS
        same_on_all(kernel, "(steps, model.weight.tolist())")
    kernel.run("assert ran == 0, ran").ok()
    kernel.run(px("train(2)")).ok()


def px_interrupt_alone(kernel: Kernel) -> None:
    """Ranks that do not step are interrupted wherever they are; a new cell forms the session anew."""
    told: list[bool] = []

    def interrupt(text: str) -> None:
        if "rank 0 waits" in text and not told:
            told.append(True)
            kernel.interrupt()

    first = "step()\nif hvd.rank() == 0:\n    print('rank 0 waits', flush=True)\n    hvd.barrier()"
    kernel.run(px(f"{first}\nelse:\n    time.sleep(60)"), interrupt).fails("KeyboardInterrupt")
    kernel.run(px("train(2)")).ok()
    same_on_all(kernel, "model.weight.tolist()")


def px_interrupt_told(kernel: Kernel) -> None:
    """An interrupt that finds ranks telling the error that has ended them leaves them to it."""
    end = "if hvd.rank() == 0:\n    print('rank 0 trains', flush=True)\ntime.sleep(1)\nraise Slow"
    for slow in (
        "class Slow(Exception):\n    def _render_traceback_(self):\n        time.sleep(3)\n        return ['told']",
        (
            "import farandole.errors\nwaits = [3]\nclass Slow(farandole.errors.FarandoleError):\n    @property\n"
            "    def __notes__(self):\n        time.sleep(waits.pop() if waits else 0)\n        return []"
        ),
    ):
        told: list[bool] = []

        def interrupt(text: str, told: list[bool] = told) -> None:
            if "rank 0 trains" in text and not told:
                told.append(True)
                kernel.interrupt()

        cell = kernel.run(px(f"{slow}\nstep()\n{end}"), interrupt).fails("KeyboardInterrupt")
        assert told
        assert not cell.stderr, cell.stderr
        kernel.run(px("train(2)")).ok()


def px_output(kernel: Kernel) -> None:
    """All lines are there, by rank and in order, also before an error, in messages not much longer than the text."""
    cell = kernel.run(
        px("for i in range(1000):\n    print('line', i, 'of a thousand lines of output')", "--targets [0,1]")
    )
    said = by_rank(cell)
    lines = [f"line {i} of a thousand lines of output" for i in range(1000)]
    assert said == {0: lines, 1: lines}, {rank: len(each) for rank, each in said.items()}
    text = sum(len(line) + 1 for line in lines) * 2
    assert cell.nbytes < 5 * text, (cell.nbytes, text)
    cell = kernel.run(px("for i in range(200):\n    print('line', i)\nprint('end', end='')\nassert hvd.rank() != 1"))
    cell.fails("AssertionError")
    found = SAID.findall(cell.stdout)
    for rank in "012":
        assert [line for r, line in found if r == rank] == [*(f"line {i}" for i in range(200)), "end"]
    kernel.run(px("6 * 7")).ok().stdout.index("[output:2] 42")


def lb_unchanged(kernel: Kernel) -> None:
    """Tasks of a load-balanced view are jobs of one, and the ranks' session is as it was."""
    kernel.run(px("hvd.init()\nkept = hvd.add_process_set([0, 2])")).ok()
    task = """
def train_one(rate):
    import torch
    import farandole.torch as hvd
    hvd.init()
    inside = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(inside.parameters(), lr=rate))
    for _ in range(3):
        optimizer.zero_grad()
        inside(torch.ones(2)).sum().backward()
        optimizer.step()
    return hvd.size(), hvd.rank(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

lv = rc.load_balanced_view()
found = [each.get() for each in [lv.apply(train_one, 0.1 * i) for i in range(9)]]
assert found == [(1, 0, 1.0)] * 9, found
"""
    kernel.run(task).ok()
    pair = "hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=kept).item() if hvd.rank() != 1 else 2.0"
    assert same_on_all(kernel, f"(hvd.size(), {pair})") == "(3, 2.0)"
    kernel.run(px("train(2)")).ok()
    # Engines that have had more tasks than others have not made more optimizers than these.
    label = "hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1))._reducer.label"
    same_on_all(kernel, label)


def px_numpy(kernel: Kernel) -> None:
    """Another binding trains in the same cells: its sums, a rank that raises, and what it keeps between cells."""
    begin = """
import numpy as np
import farandole.numpy as nhvd
nhvd.init()
averages = nhvd.DistributedGradients([np.zeros(3)])

def average():
    [gradient] = averages([np.full(3, float(nhvd.rank()))])
    return gradient.tolist()
"""
    kernel.run(px(begin)).ok()
    total = "nhvd.allreduce(np.arange(3.0) + nhvd.rank(), op=nhvd.Sum).tolist()"
    assert same_on_all(kernel, f"({total}, average())") == "([3.0, 6.0, 9.0], [1.0, 1.0, 1.0])"
    failing = "if nhvd.rank() == 2:\n    raise LookupError('no shard here')\naverage()"
    kernel.run(px(failing)).fails("LookupError", "no shard here", "rank 2").within(1.0)
    assert same_on_all(kernel, "average()") == "[1.0, 1.0, 1.0]"
    kernel.run(px("if nhvd.rank() != 1:\n    average()")).fails("has ended there").within(1.5)
    assert same_on_all(kernel, f"(average(), {total})") == "([1.0, 1.0, 1.0], [3.0, 6.0, 9.0])"


def px_kill(kernel: Kernel) -> None:
    """Survivors of a killed engine go on in the cell; another engine takes its seat, and the state of its peers."""
    pids = [int(lines[0]) for _, lines in sorted(by_rank(kernel.run(px("print(os.getpid())"))).items())]
    kernel.run("import signal\nvictim = ranks.seats[1].report.pid").ok()

    def kill(text: str) -> None:
        if "at five" in text and not killed:
            killed.append(time.monotonic())
            import os
            import signal

            os.kill(pids[1], signal.SIGKILL)

    killed: list[float] = []
    cell = kernel.run(px("until(state, 1000)\nprint('done', state.done, hvd.size())"), kill)
    cell.fails("its engine has died", "ranks.replace()")
    assert killed
    done = [line for _, line in SAID.findall(cell.stdout) if line.startswith("done")]
    assert done == ["done 1000 2"] * 2, cell.stdout
    setup = f"setup = {SETUP!r}\nbegun = time.monotonic()\nranks.replace(setup)\nprint(time.monotonic() - begun)"
    took_s = float(kernel.run(setup).ok().stdout.split()[-1])
    assert took_s < 10.0 * SLOWNESS, took_s
    said = by_rank(
        kernel.run(px("until(state, 1010)\nprint(os.getpid(), hvd.rank(), state.done, model.weight.tolist())"))
    )
    found = [said[rank][0].split(" ", 3) for rank in range(3)]
    assert [int(each[0]) for each in found if each[1] != "1"] == [pids[0], pids[2]], (found, pids)
    assert {each[3].split(" ", 1)[-1] for each in found} == {found[0][3].split(" ", 1)[-1]}
    assert [each[2] for each in found] == ["1010"] * 3
    assert same_on_all(kernel, "hvd.size()") == "3"


def px_kill_plain(kernel: Kernel) -> None:
    """Without an elastic function the cell ends, and the next one says what to type."""
    kernel.run("victim = ranks.seats[2].report.pid").ok()
    pid = by_rank(kernel.run(px("print(os.getpid())")))[2][0]

    def kill(text: str) -> None:
        if "going" in text:
            import os
            import signal

            with open("/proc/self/stat"):
                os.kill(int(pid), signal.SIGKILL)

    kernel.run(px("step()\nif hvd.rank() == 0:\n    print('going', flush=True)\nwhile True:\n    step()"), kill).fails(
        "its engine has died"
    )
    kernel.run(px("train(1)")).fails("ranks.replace()", "StartError")
    kernel.run("ranks = farandole.notebook.attach(rc)").ok()
    assert same_on_all(kernel, "hvd.size()", ranks=2) == "2"
    kernel.run(px("train(2)")).ok()


def run_cell(kernel: Kernel) -> None:
    """A function in a cell without engines: its output while it runs, an interrupt, the line of a traceback."""
    kernel.run(FUNCTIONS).ok()
    answer = kernel.folder / "answer"

    def answered(text: str) -> None:
        if "begun" in text:
            answer.touch()

    cell = kernel.run(f"print(farandole.run(talk, args=(0, {str(answer)!r}), np=2))", answered).ok()
    assert "[0, 1]" in cell.stdout
    before = len(kernel.processes())
    told: list[float] = []

    def interrupt(text: str) -> None:
        if "begun" in text and not told:
            told.append(time.monotonic())
            kernel.interrupt()

    cell = kernel.run("farandole.run(talk, args=(600,), np=2)", interrupt).fails("KeyboardInterrupt")
    assert cell.ended_s - told[0] < 1.0 * SLOWNESS
    assert len(kernel.processes()) <= before, kernel.processes()
    kernel.run("farandole.run(fail, np=1)").fails("raise ValueError('told so')  # the line of the cell")
    kernel.run("job = farandole.launch(talk, np=2)\nassert not job.done").ok().within(1.0)
    assert "[0, 1]" in kernel.run("print(job.result(60))").ok().stdout


CHECKS: list[Callable[[Kernel], None]] = [
    px_fail, px_diverge, px_watch, px_watch_late, px_interrupt, px_interrupt_alone, px_interrupt_told, px_output,
    lb_unchanged, px_numpy, px_remedy, px_wait, execute_fail, px_kill, px_watch_replaced, px_watch_ended, px_kill_plain,
    run_cell,
]  # fmt: skip


def main() -> None:
    """Run the checks with these names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Kernel(Path(folder)) as kernel:
        kernel.run(BEGIN).ok()
        kernel.run(px(SETUP)).ok()
        for check in CHECKS:
            if not options.names or check.__name__ in options.names:
                begun = time.monotonic()
                if check is px_interrupt:
                    px_interrupt(kernel, options.times)
                else:
                    check(kernel)
                print(check.__name__, "ok", f"{time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
