"""Files of hosts that replace the machine's own: names, an ssh server's and root's keys, a home directory."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from workbench.cluster.namespaces import SHARED

HOME = SHARED / "home"
"""Root's home directory on all hosts, shared as at computing centres; the caller's own is neither read nor written."""

_SSHD = """\
HostKey /etc/ssh/host_key
UsePAM no
KexAlgorithms curve25519-sha256
PrintMotd no
PrintLastLog no
PidFile none
Subsystem sftp internal-sftp
"""


def share(folder: Path, names: Mapping[str, str], etc: Mapping[str, str]) -> None:
    """Fill a cluster's shared folder: ``etc`` lies over ``/etc`` of each host, and ``home`` makes ``ssh node2`` work.

    ``names`` maps hosts to addresses; ``etc`` adds files: ``{"slurm/slurm.conf": "..."}``.
    """
    accounts = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
    hosts = "".join(f"{address} {name}\n" for name, address in names.items())
    files = {
        "hosts": f"127.0.0.1 localhost\n::1 localhost\n{hosts}",
        "resolv.conf": "",
        "passwd": "\n".join([f"root:*:0:0:root:{HOME}:/bin/bash", *accounts, ""]),
        "shadow": "root:*:1::::::\n",  # a locked root ("!") could not log in by key either
        "ssh/sshd_config": _SSHD,
        "ssh/ssh_config": "",
        **etc,
    }
    for name, text in files.items():
        file = folder / "etc" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    ssh = folder / "home" / ".ssh"
    ssh.mkdir(mode=0o700, parents=True)
    (ssh / "authorized_keys").write_text(_new_key(ssh / "id_ed25519"))
    (ssh / "known_hosts").write_text(f"* {_new_key(folder / 'etc' / 'ssh' / 'host_key')}")


def _new_key(file: Path) -> str:
    """Write a key pair and return its public half."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cluster", "-f", str(file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=60,
    )
    return file.with_suffix(".pub").read_text()
