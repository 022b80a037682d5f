"""Cost models, beside sums over messages and against each other; and a simulation of steps on up to 27,360 ranks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import UsageError
from farandole.predict import costs
from farandole.predict.costs import FABRICS, Fabric
from farandole.predict.headlines import fitted, headlines
from workbench.predict.simulation import SimulatedStep

networks = st.builds(Fabric, st.floats(1e-7, 1e-4), st.floats(1e-12, 1e-8))


@given(nbytes=st.floats(1, 1e10), p=st.integers(1, 4096), network=networks)
def test_no_all_reduce_is_below_the_bound_of_its_bytes(nbytes: float, p: int, network: Fabric) -> None:
    bound = 2 * (p - 1) / p * nbytes * network.beta_s
    by_ring, by_halving = costs.ring(nbytes, p, network), costs.halving_doubling(nbytes, p, network)
    assert bound <= by_halving <= by_ring * (1 + 1e-9)


@given(k=st.integers(0, 12), nbytes=st.floats(1, 1e9), network=networks)
def test_halving_and_doubling_is_the_sum_of_its_messages(k: int, nbytes: float, network: Fabric) -> None:
    messages = [network.alpha_s + nbytes / 2 ** (i + 1) * network.beta_s for i in range(k)]
    assert costs.halving_doubling(nbytes, 2**k, network) == pytest.approx(2 * sum(messages), rel=1e-9)


@given(comm=st.floats(0, 10), backward=st.floats(0, 10), buckets=st.integers(1, 64))
def test_what_is_exposed_is_the_pipeline_played(comm: float, backward: float, buckets: int) -> None:
    free = 0.0
    for k in range(buckets):
        free = max(free, backward * (k + 1) / buckets) + comm / buckets
    assert costs.exposed(comm, backward, buckets) == pytest.approx(free - backward, abs=1e-9)


def test_a_tree_is_far_below_a_flat_coordinator() -> None:
    assert costs.tree_control(27360, 100, 1e-6) < 0.01 < 2.7 < costs.flat_control(27360, 100, 1e-6)
    assert costs.tree_control(1, 100, 1e-6) == 0


def test_networks_have_names_or_numbers() -> None:
    assert costs.network("1.5,23") == FABRICS["edr-dual"]
    for wrong in ("carrier-pigeon", "1", "1,0", "-1,3", "1,2,3"):
        with pytest.raises(UsageError, match="aries"):
            costs.network(wrong)


CASES = [
    SimulatedStep(1, 1),
    SimulatedStep(2, 4, between=FABRICS["25gbe"]),
    SimulatedStep(128, 4, between=FABRICS["25gbe"], nbytes=553e6, compute_s=0.46),
    SimulatedStep(8192, 1, between=FABRICS["aries"], nbytes=28e6, compute_s=0.13, sigma=0.05),
    SimulatedStep(170, radix=0),
    SimulatedStep(1024, radix=0, overlaps=False),
    SimulatedStep(4560, buckets=2),
    SimulatedStep(4560, buckets=2, overlaps=False, radix=0),
]


@pytest.mark.parametrize("step", CASES, ids=lambda step: str(step.ranks))
def test_formulas_agree_with_the_simulation(step: SimulatedStep) -> None:
    assert step.formula() == pytest.approx(step.simulated(), rel=0.05)


def test_headlines_are_what_the_page_says() -> None:
    hidden, sigma = fitted()
    assert 0.5 < hidden < 0.75
    assert 0.02 < sigma < 0.04
    off = {each.name: each.says - each.published for each in headlines()}
    assert all(abs(error) < 0.01 for name, error in off.items() if "Horovod" in name)
    assert abs(off["DeepLabv3+, Summit"]) < 0.05
    assert {name for name, error in off.items() if error > 0.05} == {"CosmoFlow, Cori", "Tiramisu, Piz Daint"}
    assert min(each.flat for each in headlines() if each.ranks == 27360) < 0.4
    assert not math.isnan(sum(off.values()))
