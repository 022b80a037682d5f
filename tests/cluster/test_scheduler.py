"""Slurm keeps the contract of schedulers; what it says otherwise than others is told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.testing.scheduler.contract import CASES, run_contract
from tests.cluster.slurm_under_test import SlurmUnderTest
from workbench.cluster import SlurmCluster


@pytest.mark.parametrize("case", CASES)
def test_slurm_keeps_the_contract(slurm: SlurmCluster, tmp_path: Path, case: str) -> None:
    (wrong,) = run_contract(SlurmUnderTest(slurm, tmp_path), {case: CASES[case]}).values()
    assert not wrong, wrong
