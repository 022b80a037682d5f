"""Source of leases of a run: files in the run folder.

    write_supply(folder, LeaseSupply(script, nonce="b1946ac9", array="812"), policy_text)       # farandole submit
    supply, limits = read_supply(folder), limits_in(folder, supply, min_np=2, max_np=16)        # in the leader

``leases.json`` describes a lease, and ``policy.toml`` holds the limits of the policy. ``policy.toml`` belongs to the
user, who may change it while the run goes on.
"""

from __future__ import annotations

from typing import final

import msgspec

from farandole.control.private_file import NotPrivateError, read_private, write_private
from farandole.errors import SettingsError, UsageError
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.lease import Lease
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.policy_file import SITE_POLICY, bounded, read_policy

SUPPLY, POLICY = "leases.json", "policy.toml"


@final
class LeaseSupply(msgspec.Struct, frozen=True):
    """Source of leases: the batch ``script`` of an array, and the ``array`` of ``count`` submitted with the leader.

    ``lead``: job of the leader. Each lease has ``workers`` on ``nodes`` for ``length_s``. ``nonce``, letters and
    digits, distinguishes the arrays of this run from all others. Without a script there is no scheduler: the only
    leases are those that users lend.
    """

    script: str = ""
    nonce: str = ""
    array: str = ""
    count: int = 0
    workers: int = 1
    nodes: int = 1
    length_s: float = 3600.0
    lead: str = ""

    @property
    def lease(self) -> Lease:
        """A lease in its state after submission."""
        return Lease("", self.workers, nodes=self.nodes, length_s=self.length_s)

    def nonce_of(self, serial: int) -> str:
        """Nonce of one array; ``serial`` counts from 1, the array submitted with the leader."""
        return f"{self.nonce}x{serial}"


def write_supply(folder: RunFolder, supply: LeaseSupply, policy: str) -> None:
    """Write the files for the leader; raises ``UsageError`` if the folder is not writable."""
    for name, payload in ((SUPPLY, msgspec.json.encode(supply)), (POLICY, policy.encode())):
        try:
            write_private(folder.path / name, payload)
        except OSError as error:
            raise UsageError(f"{folder.path / name} cannot be written: {error.strerror}") from error


def read_supply(folder: RunFolder) -> LeaseSupply:
    """Read the file from a run folder; a supply without a script if there is no file."""
    path = folder.path / SUPPLY
    try:
        return msgspec.json.decode(read_private(path), type=LeaseSupply)
    except FileNotFoundError:
        return LeaseSupply()
    except (OSError, NotPrivateError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is refused: {error}") from error


def limits_in(folder: RunFolder, supply: LeaseSupply, min_np: int, max_np: int) -> LeaseLimits:
    """Limits from the policy files of the site and of the run, with ``min_np`` and ``max_np`` of the run.

    Raises ``UsageError`` or ``SettingsError`` for a file that is unreadable or invalid.
    """
    limits = bounded(read_policy(SITE_POLICY), read_policy(folder.path / POLICY))
    most = min(max_np or limits.max_np, limits.max_np or max_np)
    asked = {
        "min-np": min_np,
        "max-np": most,
        "lease-workers": supply.workers,
        "lease-nodes": supply.nodes,
        "paused": limits.paused or not supply.script,
    }
    try:
        return msgspec.convert({**msgspec.to_builtins(limits), **asked}, LeaseLimits)
    except msgspec.ValidationError as error:  # also wraps errors raised by LeaseLimits
        raise SettingsError(f"{folder.path / POLICY}: {error}") from error
