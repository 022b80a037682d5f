"""Horovod's errors. Farandole raises more specific errors, derived from ``HorovodInternalError``."""

from __future__ import annotations

from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


class HorovodVersionMismatchError(ImportError):
    """Mismatch of the framework's version and Horovod's build; never raised by Farandole, which is built for none."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name, self.version, self.installed_version = name, version, installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Text of a ``HorovodVersionMismatchError``."""
    return f"built for {name} {version}, found {name} {installed_version}"
