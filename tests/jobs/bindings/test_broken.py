"""The contract finds bindings that are wrong: each of these has one fault, and one case that has to tell."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import farandole.numpy as hvd
from farandole.elastic.worker.state import ObjectState
from farandole.elastic.worker.state_sync import LocalState
from farandole.testing.rank import RankContext
from tests.support.bindings.broken import (
    BrokenState,
    BrokenTrainer,
    Finite,
    Frozen,
    forgetful,
    local,
    silent,
    unagreed,
    unordered,
)
from tests.support.bindings.numpy_under_test import NumpyUnderTest
from workbench.binding.contract import CASES, run_contract
from workbench.jobs import run_job


def _broken(**functions: Callable[..., Any]) -> dict[str, str]:
    """Findings of the contract, alone, over a binding with some functions replaced."""
    under_test = NumpyUnderTest()
    under_test.hvd = SimpleNamespace(**{**{n: getattr(hvd, n) for n in hvd.__all__}, **functions})
    hvd.init()
    try:
        return run_contract(under_test)
    finally:
        hvd.shutdown()


def _unscaled(x: object, *given: object, prescale_factor: float = 1.0, **named: object) -> object:
    return hvd.allreduce(x, *given, **named)  # type: ignore[arg-type]


def _uncounted(x: object, splits: object = None) -> object:
    return hvd.alltoall(x)


FUNCTIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "every_reduction": {"allreduce": _unscaled},
    "shapes_and_strides": {"allreduce_": hvd.allreduce},
    "asynchronous_variants": {"poll": lambda *_: True},
    "in_place_variants": {"grouped_allreduce_": hvd.grouped_allreduce},
    "alltoall": {"alltoall": _uncounted},
    "parameters_in_all_forms": {"broadcast_parameters": lambda *_, **__: None},
    "what_cannot_be_right_raises_at_once": {"broadcast": lambda x, *_, **__: x},
    "the_topology_and_the_probes": {"local_size": lambda: 2},
    "a_session_after_another": {"shutdown": lambda: None},
}
"""Case that has to find it, and what is wrong."""


@pytest.mark.parametrize("case", FUNCTIONS)
def test_the_contract_finds_a_function_that_is_wrong(case: str) -> None:
    found = _broken(**FUNCTIONS[case])
    assert [name for name, wrong in found.items() if wrong] == [case]


def test_a_binding_alone_keeps_the_contract() -> None:
    assert _broken() == dict.fromkeys(CASES, "")


BROKEN: list[tuple[str, Callable[[], NumpyUnderTest]]] = [
    ("in_place_variants", Frozen),
    ("gradients_that_are_not_finite", Finite),
    ("workers_train_as_one_worker_does", lambda: BrokenTrainer(local)),
    ("workers_train_as_one_worker_does", lambda: BrokenTrainer(id, {"op": hvd.Sum})),
    ("workers_train_as_one_worker_does", lambda: BrokenTrainer(id, {"lag": 1})),
    ("ranks_that_step_with_other_numbers_are_told", lambda: BrokenTrainer(silent)),
    ("weights_that_nobody_broadcast", lambda: BrokenTrainer(silent)),
    ("an_overflow_on_one_rank_is_a_step_that_none_takes", lambda: BrokenTrainer(unagreed)),
    ("virtual_workers_compute_the_same_bits", lambda: BrokenTrainer(unordered)),
    ("a_state_goes_back_to_what_was_committed", lambda: BrokenState(restore=lambda _: None)),
    (
        "a_state_goes_back_to_what_was_committed",
        lambda: BrokenState(save=lambda self: self._saved.update(self._objects())),
    ),
    ("a_state_that_was_only_saved", lambda: BrokenState(save=lambda _: None)),
    ("all_ranks_begin_with_the_state_of_one", lambda: BrokenState(sync=ObjectState.save)),
    ("all_ranks_get_the_newest_state", lambda: BrokenState(_job_state=property(lambda _: LocalState()))),
    ("an_attribute_that_one_rank_alone_has", lambda: BrokenState(sync=ObjectState.save)),
    ("a_trainer_goes_on_from_its_state", lambda: BrokenTrainer(forgetful)),
]
"""Case that has to find it, and what is wrong."""


def _found(member: RankContext) -> list[str]:
    """For each broken binding what its case says, in a session of its own; the other ranks are not waited for."""
    said = []
    for case, make in BROKEN:
        hvd.init()
        binding = make()
        try:
            CASES[case](binding)
            said.append("")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        del binding
        hvd.shutdown()
    return said


def test_the_contract_finds_what_is_wrong_between_ranks() -> None:
    every = run_job(_found, 2)
    for number, (case, _) in enumerate(BROKEN):
        said = [each[number] for each in every]
        assert any(text.startswith("AssertionError") for text in said), f"{case}, {number}: {said}"
