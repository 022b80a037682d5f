"""Description of a run that is about to begin: its command, versions, commit and seeds.

info = describe(["python", "train.py", "--seed", "3"])
info.seeds                      # {"--seed": "3"}
"""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

from farandole.control.os_text import legible
from farandole.monitor.folder import RunInfo

PACKAGES = ("torch", "tensorflow", "tensorflow-cpu", "keras", "jax", "mxnet", "numpy", "optax", "optuna")

GIT_S = 5.0
"""Time for git to answer; git is slow in large checkouts on shared disks."""

_SEED = re.compile(r"--?(\w*seed\w*)(?:=(.+))?|(\w*seed\w*)=(.+)", re.IGNORECASE)


def describe(command: Sequence[str], environment: Mapping[str, str] | None = None) -> RunInfo:
    """Description of ``command``, which this process starts now."""
    command = list(map(legible, command))
    return RunInfo(
        began_s=time.time(),
        command=command,
        folder=legible(os.getcwd()),
        host=socket.gethostname(),
        user=_user(),
        git=git_commit(),
        versions={"python": platform.python_version(), **_versions()},
        seeds=seeds_in(command, os.environ if environment is None else environment),
    )


def seeds_in(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Random seeds that a command and its variables name.

    >>> seeds_in(["train.py", "--seed", "3", "data_seed=4"], {"PYTHONHASHSEED": "0"})
    {'--seed': '3', 'data_seed': '4', 'PYTHONHASHSEED': '0'}
    """
    found = {}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        match = _SEED.fullmatch(word)
        if match is not None:
            value = match[2] or match[4] or following
            found[word.partition("=")[0]] = value
    return found | {name: value for name, value in environment.items() if name == "PYTHONHASHSEED"}


def git_commit() -> str:
    """Commit of the checkout in the working folder, with a ``+`` if its files were changed; "" without a checkout."""
    commit = _git("rev-parse", "HEAD")
    return commit and commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*words: str) -> str:
    try:
        done = subprocess.run(("git", *words), capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a number without a name, as in containers
        return str(os.geteuid())


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
