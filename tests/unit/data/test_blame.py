"""Blame for late batches: pure, from the steps that ranks tell of."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from farandole.data.loading.pool import InputWait
from farandole.data.loading.report import InputStep, RankInput, blame, cause_of, cpu_list
from farandole.data.storage.waits import Meter

COMPUTE_S = 0.1


def trained(starved: list[list[float]], tells_waits: bool = True, cause: str = "decode") -> list[RankInput]:
    """Ranks that compute for as long and meet after each step; ``starved[rank][step]`` is how late its batch was."""
    ranks: list[list[InputStep]] = [[] for _ in starved]
    waited = [0.0] * len(starved)
    for step in range(len(starved[0])):
        arrival = max(late[step] for late in starved)
        for rank, late in enumerate(starved):
            step_s = COMPUTE_S + late[step] + waited[rank]
            told = waited[rank] if tells_waits else 0.0
            ranks[rank].append(InputStep((0, 8 * step), 8, step_s, late[step], told, cause if late[step] else ""))
            waited[rank] = arrival - late[step]
    return [RankInput(rank, f"node{rank}", steps, workers=8) for rank, steps in enumerate(ranks)]


def test_the_rank_that_comes_last_is_blamed_with_its_cause() -> None:
    late = [[0.0] * 50, [0.0] * 50, [0.05] * 50]
    for tells_waits in (True, False):
        found = blame(trained(late, tells_waits, cause="shared storage"))
        assert (found.blamed[0].rank, found.blamed[0].host, found.blamed[0].cause) == (2, "node2", "shared storage")
        assert abs(found.exposed_s / 2.5 - 1) < 0.05
        assert abs(found.share / (0.05 / 0.15) - 1) < 0.05
        assert abs(found.needed_per_s / found.had_per_s - 1.5) < 0.05
        text = str(found)
        assert text.startswith("input-bound: 33 % of the step waits for rank 2 on node2: shared storage. Needed ")
        assert text.endswith("Stage it: data = hvd.data.stage(data); or read more at once, threads=32.")


def test_a_training_that_does_nothing_but_wait_needs_no_absurd_number_of_samples() -> None:
    waits = [InputStep((0, k), 8, 0.5, 0.5, 0.0, "decode") for k in range(10)]
    assert "Needed over 100 times the 16 samples/s that it had." in str(blame([RankInput(0, "a", waits)]))


def test_first_batches_are_told_of_apart() -> None:
    steps = [InputStep((epoch, k), 4, 0.1, 0.0, 0.0) for epoch in range(2) for k in range(1, 10)]
    firsts = [InputStep((epoch, 0), 4, 2.0, 2.0, 0.0, "shared storage", is_first=True) for epoch in range(2)]
    found = blame([RankInput(0, "a", [*firsts, *steps])])
    assert (found.steps, found.exposed_s, found.first_s) == (18, 0.0, 4.0)
    assert str(found).endswith("First batches took 4.0 s more.")


def test_who_has_its_batch_in_time_is_not_blamed() -> None:
    found = blame(trained([[0.0] * 20, [0.0] * 20]))
    assert found.share == 0.0
    assert not found.blamed
    assert str(found).startswith("input keeps up: 0.0 % of the time waits for it.")


def test_no_alarm_where_all_waits_together_are_negligible() -> None:
    steps = [InputStep((0, k), 8, 2e-4, 1.5e-4, 0.0, "decode") for k in range(100)]
    assert str(blame([RankInput(0, "a", steps)])).startswith(
        "input keeps up: 75.0 % of the time waits for it, 0.015 s in all. Needed"
    )


def test_a_wait_hidden_behind_a_slower_rank_costs_nothing() -> None:
    slow = [InputStep((0, k), 4, 0.3, 0.0, 0.0) for k in range(20)]
    starved = [InputStep((0, k), 4, 0.3, 0.1, 0.1, "decode") for k in range(20)]
    assert blame([RankInput(0, "a", slow), RankInput(1, "b", starved)]).exposed_s == 0.0


def test_steps_that_not_all_ranks_tell_of_do_not_count() -> None:
    first, second = trained([[0.0] * 5, [0.1] * 5])
    late = RankInput(1, "b", second.steps[3:])
    assert blame([first, late]).steps == 2
    assert (
        str(blame([]))
        == str(blame([first, RankInput(1, "b", [])]))
        == ("no step has followed another one yet: ask after some of them")
    )


@given(st.integers(1, 5), st.integers(0, 4), st.floats(0.02, 5.0), st.integers(0, 2**32))
def test_any_delay_of_any_rank_is_found(size: int, rank: int, delay_s: float, seed: int) -> None:
    """100 of 100, within 5 %."""
    rank %= size
    chance = random.Random(seed)
    late = [[delay_s if who == rank else chance.uniform(0.0, 0.01) for _ in range(30)] for who in range(size)]
    found = blame(trained(late))
    assert found.blamed[0].rank == rank
    assert abs(found.exposed_s / (30 * delay_s) - 1) < 0.05
    assert found.utilization == 1 - found.share


def wait(cpu_s: float, **spent: float) -> InputWait:
    found = InputWait(1.0)
    found.late = Meter()
    found.late.add({name.replace("_", " "): seconds for name, seconds in spent.items()})
    found.cpu_s = cpu_s
    return found


def test_threads_that_share_a_core_are_told_from_slow_decoding() -> None:
    crowded = wait(1.0, decode=7.0)  # seven threads got a seventh of one processor each
    assert cause_of(crowded, workers=7, cpu_count=1) == "shared core"
    assert cause_of(wait(0.0, decode=7.0), workers=7, cpu_count=1) == "decode"  # they slept
    assert cause_of(wait(7.0, decode=7.0), workers=7, cpu_count=8) == "decode"
    assert cause_of(wait(1.0, decode=1.0, shared_storage=7.0), workers=7, cpu_count=1) == "shared storage"


def test_the_advice_for_a_shared_core_names_the_cpuset_and_what_to_type() -> None:
    [rank] = trained([[0.1] * 5], cause="shared core")
    found = blame([RankInput(0, rank.host, rank.steps, workers=7, cpus="5", cpu_count=1)])
    assert found.advice == "7 decode threads share 1 core (cpuset 5); try `srun -c 7`."
    assert [cpu_list(cpus) for cpus in ([5], [0, 1, 2, 5], [0, 2, 3], [])] == ["5", "0-2,5", "0,2-3", ""]
