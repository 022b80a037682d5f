"""The contract of providers, on processes of this host: as children, and by an agent."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import final

import pytest

from farandole.launch.providers.hosts import HostProvider
from farandole.launch.providers.local import LocalProvider
from farandole.launch.providers.provider import Provider
from farandole.settings import Settings
from workbench.provider import CASES, ProviderUnderTest, run_contract


@final
class LocalUnderTest(ProviderUnderTest):
    """Children of this process."""

    def provider(self, folder: Path) -> Provider:
        return LocalProvider(2, folder / "workers.txt")


@final
class HostsUnderTest(ProviderUnderTest):
    """Children of an agent of this host."""

    def provider(self, folder: Path) -> Provider:
        return HostProvider(f"{socket.gethostname()}:2", folder / "workers.txt", [], Settings())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("under_test", [LocalUnderTest, HostsUnderTest])
def test_a_provider_keeps_the_contract(under_test: type[ProviderUnderTest], case: str) -> None:
    found = run_contract(under_test(), {case: CASES[case]})
    assert not found[case], found[case]
