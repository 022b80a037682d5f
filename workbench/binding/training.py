"""Cases of whole steps: forward, backward, the reduction, the optimizer's rule. Skipped by a binding without them."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.errors import DivergenceError
from workbench.binding.under_test import BindingUnderTest, Trainer, Values, raises

RULES = ("sgd", "adam")
ROWS = 4
"""Rows of each rank in one step."""

TRUE = np.array([[1.0], [-2.0], [3.0]])
VIRTUAL_WORKERS = 6
"""Virtual workers for up to four ranks: some ranks have one more than others."""


def workers_train_as_one_worker_does(b: BindingUnderTest) -> None:
    """A hundred steps of all ranks equal those of one worker with the joined batches; all ranks have the same bits."""
    for rule in RULES:
        together, alone = b.trainer(rule), b.trainer(rule, distributed=False)
        if together is None or alone is None:
            return
        for step in range(100):
            x, y = batch(step, ROWS * b.size)
            mine = slice(b.rank * ROWS, (b.rank + 1) * ROWS)
            together.step(x[mine], y[mine])
            alone.step(x, y)
        assert np.abs(alone.weights()["w"] - TRUE).max() < np.abs(TRUE).max() / 2, f"{rule} alone does not learn"
        for name, expected in alone.weights().items():
            np.testing.assert_allclose(together.weights()[name], expected, 1e-6, err_msg=f"{rule}: {name}")
        assert_alike(b, together)


def ranks_that_step_with_other_numbers_are_told(b: BindingUnderTest) -> None:
    """All ranks get an error: which weight differs, at which step, and on which two ranks."""
    trainer = b.trainer("sgd")
    if trainer is None or b.size == 1:
        return
    _train(b, trainer, range(2))
    if b.rank == b.size - 1:
        trainer.add("b", 1e-9)
    with raises(DivergenceError, rf"rank 0 on \S+ and rank {b.size - 1} on \S+ .*'\S*b\S*' differs at step \d"):
        _train(b, trainer, range(2, 5))


def weights_that_nobody_broadcast(b: BindingUnderTest) -> None:
    """Reported before they do harm, with the function to call."""
    trainer = b.trainer("sgd")
    if trainer is None or b.size == 1:
        return
    trainer.add("w", float(b.rank))
    with raises(DivergenceError, r"'\S*w\S*' differs before the first step.*broadcast_parameters"):
        _train(b, trainer, range(3))


def an_overflow_on_one_rank_is_a_step_that_none_takes(b: BindingUnderTest) -> None:
    """No rank's weights change, and every rank's loss scale is halved."""
    trainer, plain = b.trainer("sgd", loss_scale=1024.0), b.trainer("sgd", distributed=False)
    if trainer is None or plain is None:
        return
    for step in range(6):
        x, y = batch(step, ROWS * b.size)
        mine, before = slice(b.rank * ROWS, (b.rank + 1) * ROWS), trainer.weights()
        overflows = step in (1, 4)
        if not overflows:
            plain.step(x, y)
        elif b.rank == (step == 4) * (b.size - 1):
            y[mine] = np.inf
        trainer.step(x[mine], y[mine])
        changed = any((trainer.weights()[name] != values).any() for name, values in before.items())
        assert changed is not overflows, f"step {step}, loss scale {trainer.loss_scale()}"
    assert b.hvd.allgather_object(trainer.loss_scale()) == [256.0] * b.size
    for name, expected in plain.weights().items():
        np.testing.assert_allclose(trainer.weights()[name], expected, 1e-6, err_msg=name)
    assert_alike(b, trainer)


def virtual_workers_compute_the_same_bits(b: BindingUnderTest) -> None:
    """Any number of ranks computes the bits of one rank alone, and apart from rounding the result of a plain batch."""
    workers = max(VIRTUAL_WORKERS, b.size)
    for rows in (24, 17):
        together = b.trainer("sgd", virtual_workers=workers)
        if together is None:
            return
        for step in range(5):
            together.step(*batch(step, rows))
        assert_alike(b, together)
        own = b.hvd.add_process_set([0]) if b.size > 1 else b.hvd.global_process_set
        if b.rank == 0:
            one = b.trainer("sgd", virtual_workers=workers, process_set=own)
            plain = b.trainer("sgd", distributed=False)
            assert one is not None
            assert plain is not None
            for step in range(5):
                one.step(*batch(step, rows))
                plain.step(*batch(step, rows))
            for name, expected in one.weights().items():
                assert (together.weights()[name] == expected).all(), f"{name} on {b.size} ranks"
                np.testing.assert_allclose(expected, plain.weights()[name], 1e-9, err_msg=name)
            del one
        if b.size > 1:
            b.hvd.barrier()
            b.hvd.remove_process_set(own)


def batch(step: int, rows: int) -> tuple[Values, Values]:
    """The rows of a step, with noise, so that there is always something to learn."""
    random = np.random.default_rng(step)
    x = random.normal(size=(rows, 3))
    return x, x @ TRUE + 0.5 + 0.1 * random.normal(size=(rows, 1))


def assert_alike(b: BindingUnderTest, trainer: Trainer) -> None:
    """Fail unless all ranks have the same bits. Collective."""
    mine: dict[str, Any] = {name: values.tobytes() for name, values in sorted(trainer.weights().items())}
    assert b.hvd.allgather_object(mine) == [mine] * b.size, "ranks have other weights"


def _train(b: BindingUnderTest, trainer: Trainer, steps: range) -> None:
    for step in steps:
        x, y = batch(step, ROWS * b.size)
        mine = slice(b.rank * ROWS, (b.rank + 1) * ROWS)
        trainer.step(x[mine], y[mine])
