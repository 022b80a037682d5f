"""What ``examples/bigearthnet`` concludes from trainings and trials, and how it puts several runs together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.bigearthnet.experiment import FULL, QUICK, Report, Result, Row, merged
from examples.bigearthnet.findings import findings, summary
from examples.bigearthnet.tables import batch_table_markdown, tuning_markdown
from examples.bigearthnet.training import Outcome
from examples.bigearthnet.tune import BESIDE, CHOSEN, EVERY, SEED, Trial, Tuning, best, read, tuned

AS_PUBLISHED = {("sgd", 1): 0.95, ("sgd", 16): 0.94, ("sgd", 32): 0.85, ("sgd", 64): 0.45, ("lars", 32): 0.94}


def report(scores: dict[tuple[str, int], float], *, seed: int = 0) -> Report:
    """As if trainings had ended with these scores; LAMB never learns."""
    results = [
        Result(Row(name, ratio, 0.1), seed, 16 * ratio, 2 * ratio, Outcome([0.1], [f1], 1, 0.1, "real", 2, 1.0))
        for (name, ratio), f1 in {**scores, ("lamb", 32): 0.0}.items()
    ]
    return Report({"command": f"run {seed}"}, replace(QUICK, seeds=(seed,)), results, 0.41, 60.0, 100.0)


def holds(scores: dict[tuple[str, int], float]) -> list[bool]:
    """Which of the published claims these scores bear out."""
    return [finding.holds for finding in findings(summary(report(scores)), 0.41)]


def test_the_published_shape_is_recognized() -> None:
    assert holds(AS_PUBLISHED) == [True] * 4


@pytest.mark.parametrize(
    ("row", "f1", "claim"),
    [(("sgd", 16), 0.92, 0), (("sgd", 32), 0.91, 1), (("sgd", 64), 0.6, 2), (("lars", 32), 0.92, 3)],
)
def test_what_does_not_come_out_is_said(row: tuple[str, int], f1: float, claim: int) -> None:
    assert holds({**AS_PUBLISHED, row: f1}) == [number != claim for number in range(4)]


def test_either_layerwise_optimizer_may_help() -> None:
    found = findings(summary(report({**AS_PUBLISHED, ("lars", 32): 0.5})), 0.41)[3]
    assert not found.holds
    assert found.claim.startswith("LARS")  # the better one


def test_runs_with_other_seeds_become_one() -> None:
    both = merged([report(AS_PUBLISHED), report({**AS_PUBLISHED, ("sgd", 32): 0.75}, seed=1)])
    line = summary(both)[2]
    assert line.f1s == [0.85, 0.75]
    assert line.f1 == pytest.approx(0.8)
    assert line.deviation == pytest.approx(0.05 * 2**0.5)
    assert both.experiment.seeds == (0, 1)
    assert (both.seconds, both.cpu_seconds) == (120.0, 200.0)
    assert both.made_by["command"] == "run 0; run 1"


def test_runs_that_do_not_fit_are_refused() -> None:
    one = report(AS_PUBLISHED)
    with pytest.raises(ValueError, match="different experiments, or of the same seed twice"):
        merged([one, one])
    other = report(AS_PUBLISHED, seed=1)
    with pytest.raises(ValueError, match="different experiments"):
        merged([one, replace(other, experiment=replace(other.experiment, epochs=9))])


def test_a_page_says_when_its_numbers_are_of_other_settings() -> None:
    one = report(AS_PUBLISHED)
    assert "run it again" in batch_table_markdown(one)
    assert "run it again" not in batch_table_markdown(replace(one, experiment=replace(tuned(FULL), seeds=(0,))))


# -- trials -----------------------------------------------------------------------------------------------------------


def test_the_best_trials_are_chosen_and_what_is_beside_only_shown() -> None:
    grids = [[Trial(row, 0.5 + i / 100, 0.1) for i, row in enumerate(grid)] for grid in CHOSEN.values()]
    beside = [Trial(row, 0.9, 0.1) for row in BESIDE]
    tuning = Tuning(QUICK, SEED, [trial for grid in grids for trial in grid] + beside)
    assert best(tuning) == {name: grid[-1] for name, grid in CHOSEN.items()}
    other = [replace(t, f1=t.f1 + 0.03) if t.row == CHOSEN["lars"][0] else t for t in tuning.trials]
    assert best(replace(tuning, trials=other)) == {**best(tuning), "lars": CHOSEN["lars"][0]}
    page = tuning_markdown(tuning)
    assert "12 trials" in page
    assert "run it again" not in page
    assert "1 of them were not made yet: run it again" in tuning_markdown(replace(tuning, trials=tuning.trials[1:]))
    assert page.count("| chosen |") == len(CHOSEN)
    assert "tuned anew at 32 x B0, SGD reaches 0.900" in page


def test_the_table_has_what_was_chosen() -> None:
    """By as many trials for each, of the size of the table's trainings, and with a seed that it does not have."""
    tuning = read()
    assert tuning.experiment == replace(FULL, seeds=())
    assert tuning.seed not in FULL.seeds
    assert len({len(grid) for grid in CHOSEN.values()}) == 1
    tried = [trial.row for trial in tuning.trials]
    assert tried == [row for row in EVERY if row in tried]
    chosen = best(tuning)
    assert [(row.optimizer, row.ratio) for row in tuned(FULL).rows[4:]] == [("lars", 32), ("lamb", 32)]
    for row in tuned(FULL).rows:
        assert row == replace(chosen[row.optimizer], ratio=row.ratio)
