"""``run.json`` of a search: what was asked, and with which versions; a search that goes on must be asked the same.

record = RunRecord.here(plan_values)
record.keep(folder / "run.json")
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, final

import msgspec

from farandole.errors import UsageError
from farandole.version import __version__

PACKAGES = ("optuna", "torch", "tensorflow-cpu", "tensorflow", "keras", "jax", "numpy")


@final
class RunRecord(msgspec.Struct, frozen=True):
    """Record of a search: when, where and how it began, with which versions and seed, at which commit.

    ``asked`` is what decides its trials. No variables of the environment stand there, nor any key.
    """

    began_s: float
    command: list[str]
    folder: str
    host: str
    git: str
    versions: dict[str, str]
    seeds: dict[str, str]
    farandole: str
    asked: dict[str, Any]

    @classmethod
    def here(cls, asked: dict[str, Any]) -> RunRecord:
        """The record of a search that begins now in this process."""
        seeds = {"seed": str(asked.get("seed", ""))}
        return cls(
            time.time(),
            list(sys.argv),
            os.getcwd(),
            socket.gethostname(),
            _commit(),
            _versions(),
            seeds,
            __version__,
            asked,
        )

    def keep(self, path: Path) -> None:
        """Write the record, or compare it with that of the search that is to go on; ``UsageError`` says what differs.

        Versions may differ: a search is not lost because something was installed.
        """
        if path.exists():
            before = msgspec.json.decode(path.read_bytes(), type=RunRecord)
            mine = msgspec.json.decode(msgspec.json.encode(self.asked))
            names = [name for name in {**before.asked, **mine} if before.asked.get(name) != mine.get(name)]
            if names:
                name = names[0]
                raise UsageError(
                    f"{path.parent} holds a search with {name}={before.asked.get(name)!r}, and now it is "
                    f"{mine.get(name)!r}: ask the same, or give a new folder"
                )
            return
        new = path.with_name(f".{path.name}-{os.getpid()}")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        os.rename(new, path)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Commit of the working directory, and a plus where files differ from it; "" where there is none."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
