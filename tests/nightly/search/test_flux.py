"""Flux as a place for processes of a search: the contract of providers, and a search, on a stand-in for ``flux``."""

from __future__ import annotations

import shlex
import socket
import sys
from pathlib import Path
from typing import final

import pytest

import farandole
from farandole.errors import UsageError
from farandole.launch.providers.flux import FluxProvider
from farandole.launch.providers.provider import Provider
from tests.support.flux import fake_flux
from tests.support.search.objectives import loses_rank_1
from workbench.provider import CASES, ProviderBench, ProviderUnderTest, run_contract

HERE = socket.gethostname()


def flux(folder: Path) -> str:
    """Make the command ``flux`` of an instance whose jobs are folders of ``folder / "jobs"``."""
    path = folder / "flux"
    path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-S", fake_flux.__file__])} {folder}/jobs "$@"\n')
    path.chmod(0o755)
    return str(path)


@final
class FluxUnderTest(ProviderUnderTest):
    """Jobs on this host."""

    def provider(self, folder: Path) -> Provider:
        return FluxProvider({HERE: 2}, command=flux(folder), poll_s=0.1)


@pytest.mark.parametrize("case", CASES)
def test_flux_keeps_the_contract(case: str) -> None:
    found = run_contract(FluxUnderTest(), {case: CASES[case]})
    assert not found[case], found[case]


def test_a_worker_may_be_killed_before_its_job_has_an_id() -> None:
    def case(bench: ProviderBench) -> None:
        bench.until(lambda: bench.slots, "slots are offered")
        bench.provider.start(bench.host, [bench.under_test.worker(bench.folder, 0)])
        bench.provider.kill(bench.host, 0)
        bench.until(lambda: 0 in bench.exits, "the exit is told")
        assert bench.exits[0].code in (-15, 7), bench.exits

    assert not any(run_contract(FluxUnderTest(), {"early": case}).values())


def test_a_search_goes_on_when_a_job_is_lost(tmp_path: Path) -> None:
    provider = FluxProvider({HERE: 2}, ["--cores-per-task=1"], flux(tmp_path), poll_s=0.1)
    result = farandole.search(
        loses_rank_1, {"x": (0.0, 1.0)}, trials=1, workers=2, pool=provider, epochs=4, folder=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    assert [trial.phase for trial in result.trials] == ["complete"]
    jobs = [fake_flux.job_of(tmp_path / "jobs", each.name) for each in (tmp_path / "jobs").iterdir()]
    ended = sorted(code for _, state, code, _, _ in jobs if state == "INACTIVE")
    assert len(ended) == len(jobs) == 3, jobs
    assert "137" in ended, "no job was killed"
    trained = next(tmp_path.glob("run/**/epochs.txt")).read_text().split()[1::3]
    assert set(trained) <= {pid for *_, pid in jobs}
    arguments = [(job / "arguments").read_text() for job, *_ in jobs]
    assert all(f"--requires=host:{HERE}" in each and "FARANDOLE_" not in each for each in arguments), (
        "a secret is public"
    )


def test_a_host_that_flux_does_not_have_is_named(tmp_path: Path) -> None:
    provider = FluxProvider({"no-such-node": 1}, command=flux(tmp_path), poll_s=0.1)
    with pytest.raises(farandole.errors.ControlError, match=r"was not submitted.*unsatisfiable.*host:no-such-node"):
        farandole.search(
            loses_rank_1, {"x": (0.0, 1.0)}, trials=1, pool=provider, folder=tmp_path / "run", progress=False
        )


def test_a_provider_without_flux_says_so() -> None:
    with pytest.raises(UsageError, match="no command 'no-such-flux' in PATH"):
        FluxProvider({HERE: 1}, command="no-such-flux")
    with pytest.raises(UsageError, match="has no slot"):
        FluxProvider({})
