"""The processes that hold a cluster together: scripts beside this one that end when this process ends."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

from workbench.cluster.needs import ClusterError, search_path

PATIENCE_S = 60.0
"""Time limit of operations that take milliseconds on an idle machine."""


def script_line(name: str) -> list[str]:
    """Command that runs a script of this folder, without the environment and site-packages: up in 15 ms."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name(name))]


def enter_network(pid: int) -> list[str]:
    """Prefix of a command that is to run in the network namespace of process ``pid``."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net"]


def helper(script: str, verb: str, *arguments: str, network_of: int | None = None) -> subprocess.Popen[bytes]:
    """Start ``script verb OWNER arguments``, where the owner is this process."""
    return subprocess.Popen(
        [*(enter_network(network_of) if network_of else ()), *script_line(script), verb, str(os.getpid()), *arguments],
        cwd="/",  # it must not keep a folder of the caller's busy
        env={**os.environ, "PATH": search_path()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,  # signals of a terminal are for the caller alone
    )


def ready(process: subprocess.Popen[bytes]) -> int:
    """Wait until a helper prints ``ready NUMBER``, and return NUMBER; else raise ``ClusterError`` with its output."""
    assert process.stdout is not None
    said, deadline = b"", time.monotonic() + PATIENCE_S
    with process.stdout as pipe:
        while not said.endswith(b"\n") or not said.splitlines()[-1].startswith(b"ready "):
            readable, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(pipe.fileno(), 4096) if readable else b""
            if not piece:
                raise ClusterError(f"{process.args!r} did not get ready:\n{said.decode(errors='replace')}")
            said += piece
    return int(said.split()[-1])
