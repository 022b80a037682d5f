"""Agents over ssh: one ``ssh`` per host, all at once; the user's ``ssh_config`` applies.

    Ssh(port=2222, options=("StrictHostKeyChecking=accept-new",)).command(["node1"], settings)

No command line contains a secret: the agent reads its config from standard input. ssh never asks for a password, and
trusts only host keys that the user has accepted.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from farandole.control.entry import entry_command
from farandole.control.process import describe
from farandole.launch.agents.agent_config import MODULE
from farandole.launch.agents.agents import AgentStarter, StarterGroup
from farandole.launch.agents.local import Local
from farandole.settings import Settings
from farandole.version import __version__

CONNECT_SHARE = 0.8
"""Share of the start timeout that ssh may take to connect, so that it can still report why it failed."""


class Trouble(NamedTuple):
    """Error texts of ssh, a shell or Python, and the remedy."""

    words: tuple[str, ...]
    remedy: str


TROUBLES = (
    Trouble(
        ("Permission denied (", "Permission denied, ", "Too many authentication failures"),
        "ssh may not ask for a password here; type: ssh-copy-id {host} (or give a key with -i FILE)",
    ),
    Trouble(
        ("Host key verification failed", "No matching host key", "REMOTE HOST IDENTIFICATION HAS CHANGED"),
        "its key is not the known one, or none is known; type: ssh {host} true, and look at the key before you accept "
        "it (or say --ssh-option StrictHostKeyChecking=accept-new)",
    ),
    Trouble(("Could not resolve hostname",), "correct its name in -H, or say in ~/.ssh/config what it stands for"),
    Trouble(("Connection refused",), "is an ssh server running there, and on this port (-p)?"),
    Trouble(
        ("Connection timed out", "No route to host", "Network is unreachable", "Operation timed out"),
        "it is down, or not to be reached from here; type: ssh {host} true",
    ),
    Trouble(("No module named",), "type there: {python} -m pip install farandole=={version}"),
    Trouble(
        ("error while loading shared libraries",),
        "set LD_LIBRARY_PATH (or load the module) in the file that the shell reads for ssh there, such as ~/.bashrc",
    ),
    Trouble(
        ("not found", "No such file or directory", "Permission denied"),
        "the same Python must be there at the same place: {python}",
    ),
    Trouble(
        ("none of the controller's addresses answered", "is not of this job"),
        "let {host} connect to this host (a firewall?), or name the network to use with --network-interface",
    ),
)
"""Known errors with remedies; the first match counts."""


@final
@dataclass(frozen=True)
class Ssh(AgentStarter):
    """Starter by ssh; only the agent of this host is a child of the launcher.

    ``options``: as in ``ssh_config``; they override the default options, except BatchMode.
    """

    port: int | None = None
    identity_file: str = ""
    options: tuple[str, ...] = ()

    passes_environment = False

    def groups(self, hosts: Sequence[str], here: str) -> list[StarterGroup]:
        """One group for each host; this host needs no ssh."""
        return [StarterGroup(Local() if host == here else self, (host,)) for host in dict.fromkeys(hosts)]

    def command(self, hosts: Sequence[str], settings: Settings, module: str = MODULE) -> list[str]:
        """The ``ssh`` to one host; ``exec`` leaves no shell around the agent."""
        (host,) = hosts
        words = ["ssh", "-T", "-x", "-o", "BatchMode=yes"]
        words += ["-p", str(self.port)] if self.port else []
        words += ["-i", self.identity_file] if self.identity_file else []
        told = [*self.options, *_patience(settings), "ControlMaster=no"]  # ssh uses the first of two
        words += [word for option in told for word in ("-o", option)]
        return [*words, "--", host, f"exec {shlex.join(entry_command(module))}"]

    def explain(self, hosts: Sequence[str], code: int, said: str) -> str:
        """Reason and remedy from ``TROUBLES``; otherwise the last line that ssh printed."""
        (host,) = hosts
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        for trouble in TROUBLES:
            for line in reversed(lines):
                if any(words in line for words in trouble.words):
                    remedy = trouble.remedy.format(host=host, python=sys.executable, version=__version__)
                    return f"host {host}: {line.removeprefix('farandole: ')}: {remedy}"
        reason = f", and said: {lines[-1]}" if lines else ""
        return f"host {host}: the ssh that started its agent {describe(code)}{reason}"


def _patience(settings: Settings) -> list[str]:
    connect_s = max(1, math.floor(CONNECT_SHARE * settings.start_timeout_s))
    options = [f"ConnectTimeout={connect_s}"]
    if settings.host_timeout_s:  # ssh then also exits after this silence
        options += ["ServerAliveInterval=1", f"ServerAliveCountMax={math.ceil(settings.host_timeout_s)}"]
    return options
