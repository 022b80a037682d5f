"""The controller of a job that no launcher started: a child of the process of rank 0.

    ensure_controller("tcp://10.0.0.1:7000", "node-a", 4, key, settings)

It serves one generation after the other and ends with the process that started it, however that ends.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from pathlib import Path
from typing import final

import msgspec

from farandole.cluster.environment import CONTROLLER
from farandole.errors import StartError
from farandole.settings import Settings

MODULE = "farandole.runtime.standalone"
EXIT_S = 2.0


@final
class Charge(msgspec.Struct, frozen=True):
    """What the controller is told on its standard input, as one line of JSON; the input's end tells it to go."""

    address: str
    host: str
    expected: int
    secret: str


_children: dict[str, subprocess.Popen[bytes]] = {}


def ensure_controller(address: str, host: str, expected: int, secret: str, settings: Settings) -> None:
    """Start the controller at ``address`` on this ``host``, with these ``settings``, unless this process has one there.

    Returns when it listens; raises ``StartError`` if it cannot.
    """
    child = _children.get(address)
    if child is not None:
        if child.poll() is None:
            return
        raise StartError(f"the controller at {address}, a child of this process, ended with {child.returncode}")
    if not _children:
        atexit.register(_end_all)
        os.register_at_fork(after_in_child=_forget)
    child = subprocess.Popen(
        [sys.executable, "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **settings.to_environment(Settings.resolve()), "PYTHONPATH": _python_path()},
        start_new_session=True,  # Ctrl-C is for the workers; the controller sees them out
    )
    _children[address] = child
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(msgspec.json.encode(Charge(address, host, expected, secret)) + b"\n")
    child.stdin.flush()
    with child.stdout:
        listens = child.stdout.readline()
    if not listens:
        del _children[address]
        child.stdin.close()
        raise StartError(
            f"the controller, a child of rank 0, could not listen at {address}: it exited with {child.wait(EXIT_S)} "
            f"and said why on stderr. {CONTROLLER} must name this host and a free port"
        )


def _python_path() -> str:
    """The place of this package first, so that the child runs the same one."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)


def _forget() -> None:
    """In a forked child: they are the parent's."""
    for child in _children.values():
        child.returncode = 0  # so that subprocess does not miss it here
    _children.clear()


def _end_all() -> None:
    while _children:
        _, child = _children.popitem()
        assert child.stdin is not None
        child.stdin.close()
        try:
            child.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
