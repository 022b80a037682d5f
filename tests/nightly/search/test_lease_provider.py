"""The contract of providers, on processes of an agent that joins by itself, as a lease does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import final

import pytest

from farandole.launch.providers.leases import LeaseProvider
from farandole.launch.providers.provider import Provider
from farandole.settings import Settings
from tests.support.patience import PATIENCE_S
from workbench.provider import CASES, ProviderUnderTest, run_contract


@final
class LeasesUnderTest(ProviderUnderTest):
    """Children of an agent that joins by itself."""

    def provider(self, folder: Path) -> Provider:
        self._folder = folder / "pool"
        return LeaseProvider(self._folder, folder / "workers.txt", [], Settings())

    def opened(self) -> None:
        command = [sys.executable, "-m", "farandole", "join", "-np", "2", str(self._folder)]
        self._agent = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def leave(self) -> bool:
        self._agent.terminate()  # as Slurm does
        return True

    def closed(self) -> None:
        super().closed()
        self._agent.wait(PATIENCE_S)


@pytest.mark.parametrize("case", CASES)
def test_leases_keep_the_contract(case: str) -> None:
    found = run_contract(LeasesUnderTest(), {case: CASES[case]})
    assert not found[case], found[case]
