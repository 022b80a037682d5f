"""An exit of the interpreter while daemon threads read rows: these end, and the process with its own status."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.launching import run_to_end
from tests.support.patience import PATIENCE_S

EXITS = """
import ctypes, os, threading
from farandole.native.rows import read_rows

into, zero = bytearray(1 << 20), os.open("/dev/zero", os.O_RDONLY)
address, has_read = ctypes.addressof(ctypes.c_char.from_buffer(into)), threading.Semaphore(0)

def read():
    while True:
        assert read_rows([zero] * 64, [0] * 64, [address] * 64, 1 << 20) == []
        has_read.release()

for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
    has_read.acquire()
"""


def test_an_exit_while_daemon_threads_read_is_no_abort(tmp_path: Path) -> None:
    done = run_to_end([sys.executable, "-c", EXITS], tmp_path, PATIENCE_S)
    assert (done.code, done.stderr) == (0, "")
