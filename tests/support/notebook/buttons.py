"""Buttons of a live view while a cell waits for the job, in a front end without subshells.

    python -m tests.support.notebook.buttons

In a process of its own, as the clients of kernels leave descriptors behind.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.monitor.page import opened
from tests.support.notebook.kernel import DEADLINE_S, Kernel

TRAIN = """
import farandole

def train():
    import time
    import numpy as np
    import farandole.numpy as hvd
    hvd.init()
    gradients = hvd.DistributedGradients([np.zeros(3, np.float32)])
    for step in range(10**6):
        gradients([np.ones(3, np.float32)])
        hvd.log(loss=1 / (1 + step))
        time.sleep(0.01)

job = farandole.launch(train, np=2)
view = job.widget
print("comm", view.comm.comm_id)
"""
WAIT = "print('waits', flush=True)\njob.result()"


def say(kernel: Kernel, comm: str, content: dict[str, Any]) -> None:
    """Send what a view sends."""
    data = {"method": "custom", "content": {"view": "a", **content}}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", {"comm_id": comm, "data": data}))


def order(verb: str) -> dict[str, Any]:
    return {"send": f'{{"t":"order","verb":"{verb}"}}'}


def told(kernel: Kernel, *texts: str, kind: str = "comm_") -> dict[str, Any]:
    """The next message of the kernel of this kind with these texts."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        message: dict[str, Any] = kernel.client.get_iopub_msg(timeout=max(0.0, until_s - time.monotonic()))
        if message["msg_type"].startswith(kind) and all(text in str(message["content"]) for text in texts):
            return message


def buttons_while_a_cell_waits(kernel: Kernel) -> None:
    """They work, and other requests are answered after that cell, in order."""
    comm = kernel.run(TRAIN).ok().stdout.split()[1]
    waiting = kernel.send(WAIT)
    told(kernel, "waits", kind="stream")  # not the echo of the code: the cell runs
    say(kernel, comm, {"open": True})
    told(kernel, comm, '"name":"loss"')
    asked = [kernel.client.kernel_info() for _ in range(3)]  # they wait for the cell, and keep their order
    say(kernel, comm, order("pause"))
    told(kernel, comm, '"pause","acted"')
    queued = kernel.send("print('not to be run')")
    say(kernel, comm, order("stop"))
    told(kernel, comm, '"stop","acted"')
    replies = {}
    while queued not in replies:
        reply = kernel.client.get_shell_msg(timeout=DEADLINE_S)
        replies[reply["parent_header"]["msg_id"]] = reply["content"]["status"]
    assert list(replies) == [waiting, *asked, queued]
    assert list(replies.values()) == ["error", "ok", "ok", "ok", "aborted"]
    assert "True" in kernel.run("print(job.done)").ok().stdout


def interrupted_wait(kernel: Kernel) -> None:
    """An interrupt ends the wait, and no request is lost."""
    comm = kernel.run(TRAIN).ok().stdout.split()[1]
    for _ in range(3):
        waiting = kernel.send(WAIT)
        told(kernel, "waits", kind="stream")  # not the echo of the code: the cell runs
        asked = [kernel.client.kernel_info() for _ in range(50)]
        say(kernel, "0" * len(comm), {"open": True})  # of another widget
        kernel.interrupt()
        replies = {}
        while asked[-1] not in replies:
            reply = kernel.client.get_shell_msg(timeout=DEADLINE_S)
            replies[reply["parent_header"]["msg_id"]] = reply["content"]["status"]
        assert replies.pop(waiting) == "error"
        assert list(replies) == asked
    with_end = "try:\n    job.result(0.2)\nexcept TimeoutError:\n    print('too long')\nprint(job.done)\njob.stop()"
    assert kernel.run(with_end).ok().stdout.split() == ["too", "long", "False"]


def same_module(kernel: Kernel) -> None:
    """What a front end is given is what the page of a recorded run serves, to the byte."""
    kernel.send(TRAIN)
    state = told(kernel, "_esm", "_anywidget_id")["content"]["data"]["state"]
    recorded = "import time\nwhile not (job.record / 'run.json').exists():\n    time.sleep(0.05)\n"
    folder = kernel.run(f"{recorded}job.stop()\nprint(job.record)").ok().stdout.strip()
    with opened(Path(folder)) as link:
        address = link.split("#")[0].rstrip("/")
        for name, trait in (("live.js", "_esm"), ("live.css", "_css")):
            with urllib.request.urlopen(f"{address}/{name}", timeout=DEADLINE_S) as served:
                assert hashlib.sha256(served.read()).digest() == hashlib.sha256(state[trait].encode()).digest(), name


CHECKS: list[Callable[[Kernel], None]] = [buttons_while_a_cell_waits, interrupted_wait, same_module]


def main() -> None:
    """Run all checks."""
    with tempfile.TemporaryDirectory() as folder, Kernel(Path(folder)) as kernel:
        for check in CHECKS:
            check(kernel)
            print(check.__name__, "ok", flush=True)


if __name__ == "__main__":
    main()
