"""A worker on a lent node, whose SIGTERM is its agent's, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.support.patience import PATIENCE_S

LENT_WORKER = """
import multiprocessing, os, pickle, signal
from farandole.cluster.contact import Contact
from farandole.control.keys import new_secret
from farandole.control.search_messages import TrialOrder
from farandole.search import worker
from tests.support.search.objectives import sometimes_raises

class Search:
    address, lost = "tcp://127.0.0.1:1", False
    def send(self, message): pass

worker._sigterm.install()
child = multiprocessing.get_context("fork").Process(target=signal.pause)
child.start()
child.terminate()
child.join(20)
print(child.exitcode)
child.kill()
this = worker._Worker(Search(), Contact([Search.address], new_secret()), 0)
order = TrialOrder(0, 0, {"x": 0.9}, 1, 1, [1], "trial", "output.txt", 1, pickle.dumps(sometimes_raises))
for _ in range(2):
    left = this._take_part(order)
    print(left.end, left.text)
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_sigterm_ends_what_a_lent_worker_has_forked_and_fails_no_trial(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LENT_WORKER],
        cwd=str(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = "RuntimeError: x is too large"
    assert done.stdout.splitlines() == ["-15", f"raised {said}", f"lost {said}"], done.stderr
