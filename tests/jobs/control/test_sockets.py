"""A process that may start no more threads says so, where libzmq would abort it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.launching import run_to_end

SCRIPT = """
import os, resource, zmq
from farandole.control.sockets import Context, new_socket
from farandole.errors import StartError

if os.getuid() == 0:
    os.setuid(54321)  # the limit is none for root
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    new_socket(Context(), zmq.DEALER)
except StartError as error:
    print(error)
"""


def test_a_limit_of_threads_is_named(tmp_path: Path) -> None:
    said = run_to_end([sys.executable, "-c", SCRIPT], tmp_path, 30).ok().stdout
    assert "may start no more threads" in said
    assert "is 0: raise it (ulimit -u 4096" in said
