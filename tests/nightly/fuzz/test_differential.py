"""The differential fuzzer: 100 programs on 3 ranks, 300 on all, and that it would notice."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from farandole.errors import UsageError
from workbench.differential.check import Checker
from workbench.differential.command import main
from workbench.differential.generator import FEATURES, generate
from workbench.differential.job import JobFindings, Nursery
from workbench.differential.oracle import consult
from workbench.differential.outcome import Outcome, ProgramFailure
from workbench.differential.program import Program, Step
from workbench.differential.shrink import shrink
from workbench.differential.verdict import EQUAL, FAILED, REFUSED, Verdict, judge

PROGRAMS = int(os.environ.get("PROGRAMS", "300"))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """PyTorch sets this variable when the first optimizer of a process is made, unless it is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


@pytest.fixture
def checker(nursery: Nursery) -> Iterator[Checker]:
    with Checker((2,), nursery=nursery) as made:
        yield made


def program(*lines: str, settings: dict[str, int | str] | None = None, may_refuse: bool = False) -> Program:
    """One of single lines."""
    return Program(0, 0, tuple(Step("test", (line,), may_refuse) for line in lines), settings or {})


BEGIN = (
    'm0 = Net("linear", seed=1)',
    "o0 = hvd.DistributedOptimizer(torch.optim.SGD(m0.parameters(), lr=0.1), m0.named_parameters())",
    "m0(data(1, rank)).square().mean().backward()",
)
END = ("o0.step()", 'record("weights", *state(m0))')


@pytest.mark.parametrize(("sizes", "programs"), [("3", PROGRAMS // 3), ("1,2,3", PROGRAMS)])
def test_programs_of_a_fixed_seed_do_what_the_oracle_does(
    sizes: str, programs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--programs", str(programs), "--seed", "1", "--sizes", sizes, "--findings", "3"]
    code = main([*arguments, "--scripts", str(tmp_path), "--shrink-seconds", "60"])
    assert code == 0, capsys.readouterr().out


def test_the_same_seed_gives_the_same_program() -> None:
    assert [generate(7, i) for i in range(20)] == [generate(7, i) for i in range(20)]
    assert len({generate(7, i).function() for i in range(20)}) == 20


def test_features_are_left_out_by_name() -> None:
    without = ("reentrant", "conv", "sum", "kept")
    assert not {*without} & {f for i in range(200) for f in generate(1, i, without).features}
    with pytest.raises(UsageError, match="no feature kpet"):
        generate(1, 0, ["kpet"])


def test_every_feature_comes_up() -> None:
    found = {feature for i in range(2000) for feature in generate(1, i).features}
    silent = {"two models", "overlap", "sum", "predivide", "passes", "groups", "sparse_as_dense", "nothing"}
    optimizers = {"sgd", "momentum", "adam", "foreach", "fused", "another model"}
    assert {*FEATURES} - found == silent | optimizers


def test_the_oracle_averages_where_the_contract_says_so() -> None:
    done = program(
        "m = nn.Linear(1, 1, bias=False)",
        "nn.init.zeros_(m.weight)",
        "o = hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=1.0))",
        "(m(torch.ones(1, 1)) * (1.0 + rank)).sum().backward()",
        'record("gradient", m.weight.grad)',
        "o.step()",
        'record("weight", m.weight.detach())',
    )
    outcomes = consult(done.compiled(), 3)
    assert [o.values["gradient.0"].numbers for o in outcomes] == [(2.0,)] * 3
    assert [o.values["weight.0"].numbers for o in outcomes] == [(-2.0,)] * 3


def test_the_oracle_says_when_ranks_wait_for_each_other() -> None:
    stuck = program('hvd.allreduce(torch.ones(1), name="a") if rank == 0 else hvd.barrier()')
    assert [o.failure and o.failure.kind for o in consult(stuck.compiled(), 2)] == ["DeadlockError"] * 2


def test_a_plain_program_is_equal(checker: Checker) -> None:
    assert [v.kind for v in checker.check(program(*BEGIN, *END))] == [EQUAL]


BUGS = {
    # what a fault in Farandole does, done by the program, where it is not the oracle that runs it
    "a gradient that is not reduced": ("m0.second.bias.grad = torch.full((2,), 0.5 + rank)", "difference"),
    "one that is reduced twice": ("m0.second.bias.grad *= 2", "difference"),
    "bits that differ between ranks": ("m0.second.bias.grad *= 1 + rank * 3e-7", "ranks differ"),
    "an error on one rank": ("assert rank == 0", "stray error"),
    "an error without a reason": ("hvd.allreduce(torch.ones(1 + rank))", "error MismatchError"),
    "a rank that dies": ("import os; os._exit(3) if rank else None", "died"),
    "a rank that hangs": ("import signal; signal.pause() if rank else None", "hang"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_fault_is_found_and_shrunk(checker: Checker, bug: str) -> None:
    line, kind = BUGS[bug]
    planted = f"(None if is_oracle(hvd) else exec({line!r}))"
    faulty = program('record("before", rank)', *BEGIN, planted, *END, settings={"bucket_bytes": 64})
    checker.deadline_s = 8.0 if kind == "hang" else 45.0
    finding = checker.first_finding(faulty)
    assert finding is not None
    assert finding.kind.startswith(kind)
    if kind == "hang":
        assert "in program" in finding.text  # the stacks of the ranks
        return
    small, verdict = shrink(faulty, finding, checker.first_finding)
    assert verdict.kind == finding.kind
    assert len(small.steps) < len(faulty.steps)
    assert not small.settings


def test_what_fails_in_plain_pytorch_may_fail(checker: Checker) -> None:
    assert [v.kind for v in checker.check(program("torch.ones(2) @ torch.ones(3)"))] == [FAILED]


DUE, LATER = "DivergenceError", "UsageError"


@pytest.mark.parametrize(
    ("errors", "steps", "may_refuse", "kind"),
    [
        ([(DUE, 5), (DUE, 5), (LATER, 9)], "ab-", True, REFUSED),
        ([(DUE, 5), (DUE, 5), (DUE, 5)], "aab", False, REFUSED),
        ([(DUE, 5), (DUE, 5), (LATER, 9)], "ab-", False, "error DivergenceError UsageError"),
        ([(DUE, 5), (DUE, 5), (LATER, 9)], "abb", True, "error DivergenceError UsageError"),
        ([(DUE, 5), (DUE, 5), (LATER, 9)], "aa-", True, "error DivergenceError UsageError"),
        ([(DUE, 5), (LATER, 9), (LATER, 9)], "ab-", True, "error DivergenceError UsageError"),
        ([(DUE, 5), (DUE, 5), (LATER, 3)], "ab-", True, "error DivergenceError UsageError"),
        ([(DUE, 5), (DUE, 5), ("StallError", 9)], "ab-", True, "error DivergenceError StallError"),
        ([(DUE, 5), (DUE, 5), ("AbortError", 9)], "ab-", False, REFUSED),
        ([(LATER, 5), ("StartError", 5), ("AbortError", 9)], "ab-", True, "error AbortError StartError UsageError"),
    ],
)
def test_two_errors_are_due_only_within_and_outside_of_a_process_set_that_diverges(
    errors: list[tuple[str, int]], steps: str, may_refuse: bool, kind: str
) -> None:
    expected = [Outcome(steps={} if each == "-" else {"o 1": each.encode()}) for each in steps]
    found: list[Outcome | None] = [Outcome(failure=ProgramFailure(name, line, True, "")) for name, line in errors]
    assert judge(program("pass", may_refuse=may_refuse), expected, JobFindings(found)).kind == kind


def test_a_deadlock_is_no_refusal() -> None:
    for text, kind in (("the ranks differ", REFUSED), ("deadlock, as all threads wait", "error MismatchError")):
        found: list[Outcome | None] = [Outcome(failure=ProgramFailure("MismatchError", 5, True, text))] * 2
        assert judge(program("pass", may_refuse=True), [Outcome()] * 2, JobFindings(found)).kind == kind


def test_shrinking_leaves_what_is_needed() -> None:
    def find(candidate: Program, sizes: Sequence[int]) -> Verdict | None:
        lines = [line for step in candidate.steps for line in step.lines]
        return Verdict("difference", "", 2) if {"3", "11"} <= {*lines} else None

    small, verdict = shrink(program(*map(str, range(20)), settings={"overlap": "step"}), Verdict("difference"), find)
    assert [step.lines for step in small.steps] == [("3",), ("11",)]
    assert not small.settings
    assert verdict.kind == "difference"


def test_scripts_of_findings_say_how_to_run_them() -> None:
    text = generate(1, 5).script(["difference \\ of something"], 2)
    compile(text, "script", "exec")
    assert "farandole run -np 2" in text
