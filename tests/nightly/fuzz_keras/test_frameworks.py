"""The differential fuzzer of JAX and Keras: a dozen programs of each on one job, and that it would notice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.support.frameworks import lean, skip_without
from workbench.differential.command import main
from workbench.differential.frameworks.batches import ENVIRONMENT
from workbench.differential.frameworks.fuzzing import candidates, check
from workbench.differential.frameworks.generation import generate
from workbench.differential.frameworks.judgement import EQUAL, REFUSED, judge
from workbench.differential.frameworks.oracle import consult
from workbench.differential.frameworks.plan import (
    FrameworkPlan,
    Numbers,
    PlanAction,
    PlanFailure,
    PlanTerms,
    RankResult,
)

TRAINS = FrameworkPlan("jax", 1, 0, PlanTerms(rate=0.05), (PlanAction("train", 1, 2),))
SPOILT = FrameworkPlan("jax", 1, 0, PlanTerms(), (PlanAction("spoil", 1, 3),))


@pytest.mark.parametrize("framework", ["jax", "keras"])
def test_programs_of_a_fixed_seed_do_what_the_oracle_does(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without(framework)
    for name, value in {"KERAS_BACKEND": "torch", **lean(framework, "torch")}.items():
        monkeypatch.setenv(name, value)
    arguments = ["--framework", framework, "--programs", "12", "--seed", "1", "--sizes", "2", "--findings", "1"]
    if framework == "jax":
        arguments += [
            "--without",
            "structure",
        ]  # of which ranks with compiled programs are told by a stall, after 30 s each
    code = main([*arguments, "--scripts", str(tmp_path), "--shrink-seconds", "0"])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("framework", ["jax", "keras"])
def test_defects_planted_in_the_package_are_found_and_nothing_else(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job: programs that are right, and the same with a defect each."""
    skip_without(framework)
    monkeypatch.setitem(ENVIRONMENT, "FARANDOLE_STALL_SHUTDOWN_S", "12")
    for name, value in {"KERAS_BACKEND": "torch", **lean(framework, "torch")}.items():
        monkeypatch.setenv(name, value)
    trains = PlanAction("train" if framework == "jax" else "batches", 1, 3)
    plain = FrameworkPlan(framework, 1, 0, PlanTerms(rate=0.05), (trains,), {"check_divergence": "every-step"})
    spoils = msgspec.structs.replace(plain, actions=(PlanAction("spoil", 1, 3),))
    meets = FrameworkPlan(framework, 1, 0, actions=(PlanAction("metrics", 1, how=("sum", "mean")),))
    blind = msgspec.structs.replace(plain, settings={"check_divergence": "off"})
    due = [(plain, "factor", "difference"), (plain, "swapped", "difference"), (blind, "late", "difference"),
           (spoils, "blind", "missed divergence")]  # fmt: skip
    if framework == "jax":  # where each rank begins them in an order of its own
        due.append((meets, "unnamed", "error StallError"))
    plans = [each for plan, defect, _ in due for each in (plan, msgspec.structs.replace(plan, planted=defect))]
    judged = [each.kind for each in check(plans, 2)]
    assert judged[::2] == [REFUSED if plan is spoils else EQUAL for plan, _, _ in due]
    assert judged[1::2] == [kind for _, _, kind in due]


@pytest.mark.parametrize(
    ("backend", "prepared"), [("jax", ("normalizes", "bins")), ("tensorflow", ("looks up", "draws"))]
)
def test_layers_that_keep_what_they_made_of_other_variables_are_found(
    monkeypatch: pytest.MonkeyPatch, backend: str, prepared: Sequence[str]
) -> None:
    """Not on PyTorch, where a layer's constants lie in the memory of its variables."""
    skip_without("keras")
    skip_without(backend)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    terms = PlanTerms(rate=0.05, initial="broadcast")
    kinds = []
    for prepares in prepared:
        own = msgspec.structs.replace(terms, prepares=prepares)
        plain = FrameworkPlan("keras", 1, 0, own, (PlanAction("fit", 1, 3, how=("broadcast",)),))
        kinds += [each.kind for each in check([plain, msgspec.structs.replace(plain, planted="stale")], 2)]
    assert kinds == [EQUAL, "difference"] * 2


@pytest.mark.parametrize("framework", ["jax", "keras"])
def test_the_same_seed_gives_the_same_program_and_all_features(framework: str) -> None:
    assert [generate(framework, 7, i) for i in range(20)] == [generate(framework, 7, i) for i in range(20)]
    features = {feature for i in range(1000) for feature in generate(framework, 1, i).features}
    of_jax = {"train", "lag", "overlap", "donate", "dtype mixed", "reinit", "again", "shape", "more"}
    of_keras = {"fit", "batches", "apply", "save", "freeze", "local", "scaled", "warmup", "average", "passes_how keras"}
    of_keras |= {"prepares normalizes", "prepares bins", "prepares draws"}
    both = {
        "metrics",
        "broadcast",
        "heal",
        "spoil",
        "structure",
        "absent",
        "uneven",
        "process_set",
        "op",
        "clip",
        "infinite",
    }
    assert both | (of_jax if framework == "jax" else of_keras) <= features


def found(plan: FrameworkPlan, size: int = 2) -> list[RankResult]:
    """What ranks record that do what the oracle says."""
    records = consult(plan, size).records
    return [RankResult({k: Numbers(v.ravel().tolist(), v.tobytes()) for k, v in each.items()}) for each in records]


def failing(*kinds: str) -> list[RankResult]:
    """Ranks that end with these errors, the empty ones without."""
    return [RankResult(failure=PlanFailure(kind, kind != "TypeError", "") if kind else None) for kind in kinds]


def test_numbers_bits_and_errors_are_compared() -> None:
    expected, right = consult(TRAINS, 2), found(TRAINS)
    assert judge(TRAINS, expected, right).kind == EQUAL
    values = right[1].records["0.train.weight1"].values
    for wrong, bits, kind in ((1.01, b"", "difference"), (1.0, b"other", "ranks differ")):
        spoilt = Numbers([each * wrong for each in values], bits)
        ranks = [right[0], RankResult({**right[1].records, "0.train.weight1": spoilt})]
        assert judge(TRAINS, expected, ranks).kind == kind
    assert judge(TRAINS, expected, failing("", "AbortError")).kind == "stray error AbortError"
    assert judge(TRAINS, expected, failing("TypeError", "AbortError")).kind == "error AbortError TypeError"


def test_divergence_must_be_told_on_every_rank() -> None:
    expected = consult(SPOILT, 2)
    assert judge(SPOILT, expected, failing("DivergenceError", "DivergenceError")).kind == REFUSED
    assert judge(SPOILT, expected, failing("DivergenceError", "")).kind == "missed divergence"
    assert judge(SPOILT, expected, failing("DivergenceError", "TypeError")).kind == "error TypeError for divergence"
    assert not consult(SPOILT, 1).due


def test_the_oracle_averages_sums_and_waits_for_passes() -> None:
    def first_bias(**terms: float | str) -> float:
        plan = msgspec.structs.replace(
            TRAINS, terms=msgspec.structs.replace(TRAINS.terms, **terms), actions=(PlanAction("train", 1, 1),)
        )
        return float(consult(plan, 2).records[0]["0.train.weight3"][0])

    begin = first_bias(rate=0.0)
    assert first_bias(op="Sum") - begin == pytest.approx(2 * (first_bias() - begin))
    assert first_bias(passes=2) == begin
    assert first_bias(lag=1) == begin


def test_smaller_plans_leave_out_actions_terms_and_settings() -> None:
    plan = generate("jax", 1, 3)
    smaller = list(candidates(plan))
    assert len(smaller) > len(plan.actions)
    assert plan.name not in {each.text() for each in smaller}
    assert FrameworkPlan("jax", 1, 3, plan.terms, plan.actions[1:], plan.settings) == smaller[0]


def test_a_job_that_ends_early_is_a_finding_and_the_next_plan_has_another() -> None:
    unknown = msgspec.structs.replace(TRAINS, framework="no such")
    assert [each.kind for each in check([unknown, unknown], 1)] == ["died", "died"]
