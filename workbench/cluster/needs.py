"""Requirements of clusters of namespaces, and how to get what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import final

HOSTS = {"ip": "iproute2", "tc": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client", "unshare": "util-linux"}
LAG = {"iptables": "iptables"}
SLURM = HOSTS | {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
ACCOUNTING = SLURM | {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"}
"""Programs, and the Debian packages that contain them."""


class ClusterError(RuntimeError):
    """A cluster, or a command on it, did not do what it should."""


@final
class UnavailableError(ClusterError):
    """Raised if a machine cannot have a cluster; the text names what is missing, and the remedy."""


def require(programs: dict[str, str]) -> None:
    """Raise ``UnavailableError`` unless this process can make namespaces, and finds these programs."""
    if os.geteuid() != 0:
        raise UnavailableError(
            f"a cluster of namespaces needs root, and this is user {os.geteuid()}: sudo -E pytest ..."
        )
    missing = sorted({package for program, package in programs.items() if not _found(program)})
    if missing:
        raise UnavailableError(f"missing Debian packages: apt-get install --no-install-recommends {' '.join(missing)}")
    trial = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "true"]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip()
        raise UnavailableError(f"this root may not make namespaces ({reason}): docker run --privileged ...")


def require_fuse() -> None:
    """Raise ``UnavailableError`` unless this process may serve a file system over FUSE; nothing has to be installed."""
    if os.geteuid() != 0:
        raise UnavailableError(f"a shared folder needs root, and this is user {os.geteuid()}: sudo -E pytest ...")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        remedy = "modprobe fuse, or docker run --privileged --device /dev/fuse ..."
        raise UnavailableError(f"no FUSE on this machine ({error}): {remedy}") from error


def _found(program: str) -> bool:
    return shutil.which(program, path=search_path()) is not None


def search_path() -> str:
    """The caller's ``PATH``, followed by Debian's folders for programs of root."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
