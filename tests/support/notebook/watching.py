"""Checks of the live view of attached ranks, in the kernel of ``checks``: see there."""

from __future__ import annotations

import re
from typing import Any

from tests.support.notebook.buttons import order, say, told
from tests.support.notebook.kernel import DEADLINE_S, Kernel

TRAIN = """
step()
print("going", flush=True)  # so all ranks are in this cell
while True:
    step()
    hvd.log(loss=1 / steps)
    if hvd.checkpoint_due():
        print("due after", steps)
"""
IDLE = """
print("idles", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""
UNTIL_ENOUGH = """
while not hvd.allreduce(torch.tensor(float(os.path.exists("enough"))), op=hvd.Sum, name="enough"):
    step()
    hvd.log(loss=1 / steps)
"""


def px(code: str) -> str:
    return f"%%px\n{code}"


def going(kernel: Kernel) -> str:
    """Begin a cell that trains until somebody ends it."""
    cell = kernel.send(px(TRAIN))
    told(kernel, "] going", kind="stream")
    return cell


def error_of(kernel: Kernel, sent: str) -> str:
    """What a cell has raised, whose messages ``told`` has read."""
    while (reply := kernel.client.get_shell_msg(timeout=DEADLINE_S))["parent_header"].get("msg_id") != sent:
        pass
    return "\n".join(reply["content"].get("traceback", ()))


def obeyed(kernel: Kernel, comm: str, verb: str) -> int:
    """Order something, and return the step after which all ranks have obeyed."""
    say(kernel, comm, order(verb))
    text = str(told(kernel, comm, f'"{verb}","acted"')["content"])
    found = re.search(rf'"{verb}","acted","[^"]*",(\d+)', text.replace("\\'", "'"))
    assert found, text
    return int(found[1])


def same_step(kernel: Kernel) -> None:
    """All ranks have made as many steps, to the same weights."""
    said = set(re.findall(r"\] (.*)", kernel.run(px("print(steps, model.weight.tolist())")).ok().stdout))
    assert len(said) == 1, said


def px_watch(kernel: Kernel) -> None:
    """The ranks' numbers are in the view, across cells, and its buttons act at the next vote of the cell that runs."""
    comm = kernel.run("view = ranks.widget\nprint('comm', view.comm.comm_id)\nview").ok().stdout.split()[1]
    say(kernel, comm, {"open": True})
    told(kernel, comm, '"state":"between cells"')
    say(kernel, comm, order("pause"))
    told(kernel, comm, '"pause","refused","no cell runs')
    say(kernel, comm, {"send": '{"t":"order","verb":"scale","workers":4}'})
    told(kernel, comm, '"scale","refused"', "farandole.notebook.attach(rc) makes")
    say(kernel, comm, order("end"))
    told(kernel, comm, '"end","refused"', "interrupt its cell")
    cell = going(kernel)
    told(kernel, comm, '"name":"loss","rank":2')
    paused = obeyed(kernel, comm, "pause")
    assert obeyed(kernel, comm, "resume") == paused
    kernel.saved = obeyed(kernel, comm, "checkpoint")
    stopped = obeyed(kernel, comm, "stop")
    error = error_of(kernel, cell)
    assert f"an order from the live view has stopped all ranks after step {stopped}" in error, error
    same_step(kernel)
    kernel.run(px("train(2)")).ok()


def px_watch_late(kernel: Kernel) -> None:
    """An order that no step of the cell obeys is refused when that ends, and an interrupt ends a pause."""
    comm = kernel.run("print('comm', view.comm.comm_id)").ok().stdout.split()[1]
    cell = kernel.send(px(IDLE))
    told(kernel, "idles", kind="stream")
    say(kernel, comm, order("stop"))
    told(kernel, comm, '"stop","taken"')
    (kernel.folder / "go").touch()
    told(kernel, comm, '"stop","refused"')  # as the cell has ended, or as none runs, on a rank that heard of it later
    assert not error_of(kernel, cell)
    kernel.run(px("train(2)")).ok()
    cell = going(kernel)
    obeyed(kernel, comm, "pause")
    kernel.interrupt()
    assert "KeyboardInterrupt" in error_of(kernel, cell)
    same_step(kernel)
    cell = going(kernel)
    obeyed(kernel, comm, "pause")  # the one before is over
    obeyed(kernel, comm, "stop")
    error_of(kernel, cell)


def px_watch_replaced(kernel: Kernel) -> None:
    """The view goes on with the job in which an engine was replaced, and one that comes later gets all of it."""
    comm = kernel.run("print('comm', view.comm.comm_id)").ok().stdout.split()[1]
    cell = kernel.send(px("step()\nhvd.log(after=1.0)"))
    told(kernel, comm, '"name":"after","rank":1')
    assert not error_of(kernel, cell)
    say(kernel, comm, {"open": True})
    told(kernel, comm, '"name":"loss"', '"name":"after","rank":1', "cell 1: import os, sys, time, torch")
    kernel.run("farandole.notebook.attach(rc, record=ranks.view.record)").fails("has the record of another run")
    kernel.run("assert not ranks.view.done").ok()


def px_watch_ended(kernel: Kernel) -> None:
    """When the ranks end a picture takes the view's place, and the record is whole, though a cell still trains."""
    kernel.run(f"%%px --noblock\n{UNTIL_ENOUGH}").ok()
    sent = kernel.send(
        "ranks.close()\nopen('enough', 'w').close()\n"
        "old, ranks = ranks, farandole.notebook.attach(rc)\nassert old.view.done"
    )
    picture: Any = told(kernel, "image/png", kind="update_display_data")["content"]["data"]
    assert "ended well: step" in picture["text/plain"]
    assert not error_of(kernel, sent)
    looked = "from farandole.monitor.runs import loaded\nprint(loaded(old.view.record).info.status)\nold.widget"
    assert kernel.run(looked).ok().stdout == "0\n"
    printed = kernel.run("print((old.view.record / 'output' / 'stdout').read_text())").ok().stdout
    due = re.findall(r"\[stdout:(\d)\] due after (\d+)", printed)
    assert sorted(due) == [(str(rank), str(kernel.saved)) for rank in range(3)], due
