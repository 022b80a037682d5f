"""Environment variables of the launcher that are passed to workers on other hosts. Pure.

    >>> for_other_hosts({"OMP_NUM_THREADS": "4", "HOSTNAME": "login1", "SSH_TTY": "/dev/pts/1"})
    {'OMP_NUM_THREADS': '4'}

As with Horovod's launcher, all are passed except those that describe the launcher's host or session; of these, workers
have the values of their own host.
"""

from __future__ import annotations

from collections.abc import Mapping

HOST_SPECIFIC = (
    "_", "BASH_FUNC_*", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "GPG_TTY", "HOME", "HOST", "HOSTNAME", "LOGNAME", "MAIL",
    "OLDPWD", "PWD", "SHELL", "SHLVL", "SLURM*", "SSH_*", "STY", "TEMP", "TERM_SESSION_ID", "TMP", "TMPDIR", "TMUX*",
    "USER", "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY", "XDG_*",
)  # fmt: skip
"""Names; a star at the end matches any suffix."""


def for_other_hosts(variables: Mapping[str, str]) -> dict[str, str]:
    """Leave out the variables that describe this host or session."""
    prefixes = tuple(name[:-1] for name in HOST_SPECIFIC if name.endswith("*"))
    return {
        name: value for name, value in variables.items() if name not in HOST_SPECIFIC and not name.startswith(prefixes)
    }
