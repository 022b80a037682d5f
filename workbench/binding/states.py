"""Cases of elastic states, in a job without changes of workers; ``elastic_job`` has such changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.errors import UsageError
from workbench.binding.under_test import BindingUnderTest


def a_state_goes_back_to_what_was_committed(b: BindingUnderTest) -> None:
    """Tensors, containers of tensors and numbers, replaced or changed in place; repeatedly."""
    state = _state(b, 1.0)
    state.sync()
    for turn in range(3):
        expected = _content(b, state)
        state.commit()
        for _ in range(2):
            _change(b, state, 10.0 + turn)
            assert _content(b, state) != expected
            state.restore()
            assert _content(b, state) == expected, f"turn {turn}"
        _change(b, state, 20.0 + turn)


def a_state_that_was_only_saved(b: BindingUnderTest) -> None:
    """``restore`` goes back to a ``save`` of this rank alone."""
    state = _state(b, float(b.rank))
    _change(b, state, 5.0)
    expected = _content(b, state)
    state.save()
    _change(b, state, 6.0)
    state.restore()
    assert _content(b, state) == expected


def all_ranks_begin_with_the_state_of_one(b: BindingUnderTest) -> None:
    """Begin with the state of rank 0 if no rank has trained; a rank's later changes are its own."""
    state = _state(b, 100.0 + b.rank)
    state.sync()
    first = _state(b, 100.0)
    assert _content(b, state) == _content(b, first)
    if b.rank:
        _change(b, state, 7.0)
    state.restore()  # a sync is saved
    assert _content(b, state) == _content(b, first)


def all_ranks_get_the_newest_state(b: BindingUnderTest) -> None:
    """With keys and elements that no other rank has, and without those that only others have."""
    state = _state(b, 1.0)
    state.sync()
    newest = b.rank == b.size - 1
    state.weights["only newest" if newest else f"only {b.rank}"] = b.make(np.full(3, float(b.rank)), "float32")
    state.log.extend([b.rank] * b.rank)
    if newest:
        _change(b, state, 3.0)
        state._step_vote.step += 1
    state.sync()
    everybody = b.hvd.allgather_object(_content(b, state))
    assert everybody == [everybody[-1]] * b.size
    assert sorted(state.weights) == ["layers", "only newest", "w"]
    assert b.dtype(state.weights["only newest"]) == "float32"
    assert b.same(state.weights["only newest"], [b.size - 1.0] * 3)
    assert b.same(state.weights["w"], np.full((2, 2), 3.0))
    assert (state.log, state.epoch) == ([0, *[b.size - 1] * (b.size - 1), 3.0], 3)


def an_attribute_that_one_rank_alone_has(b: BindingUnderTest) -> None:
    """All ranks have it after a sync, or all ranks raise; no rank waits for another.

    A rank that lacks the attribute refuses; the first refusal ends the session, which the other ranks get as an
    error. It is a race which of the ranks that lack it refuse, and which get that error first.
    """
    mine: dict[str, Any] = {"extra": b.make(np.ones(2))} if b.rank == 0 else {}
    state, outcome = b.state(epoch=0, **mine), ""
    try:
        state.sync()
    except UsageError as error:
        outcome = "refused" if "extra" in str(error) else str(error)
    except b.hvd.HorovodInternalError:
        outcome = "told"
    else:
        if not hasattr(state, "extra") or not b.same(state.extra, [1.0, 1.0]):
            outcome = "neither handed over nor refused"
    b.hvd.shutdown()  # a refusal ends the session
    b.hvd.init()
    found = b.hvd.allgather_object(outcome)
    if any(found):
        assert found[0] == "told", found
        assert "refused" in found[1:], found
        assert set(found) == {"told", "refused"}, found


def a_trainer_goes_on_from_its_state(b: BindingUnderTest) -> None:
    """Weights, and the optimizer's memory of earlier steps: after ``restore``, and on a rank that joins later."""
    from workbench.binding.training import RULES, assert_alike, batch

    for rule in RULES:
        trainer, late = b.trainer(rule, distributed=False), b.trainer(rule, distributed=False)
        if trainer is None or late is None:
            return
        state: Any = trainer.state(done=0)
        state.sync()
        for state.done in range(1, 4):
            trainer.step(*batch(state.done, 8))
        state.commit()
        trainer.step(*batch(50, 8))
        state.restore()
        assert state.done == 3
        other: Any = late.state(done=0) if b.rank else state
        if b.rank == 0:
            late = trainer
        other.sync()
        assert other.done == 3, rule
        for step in (4, 5):
            late.step(*batch(step, 8))
        undisturbed = b.trainer(rule, distributed=False)
        assert undisturbed is not None
        for step in range(1, 6):
            undisturbed.step(*batch(step, 8))
        for name, expected in undisturbed.weights().items():
            np.testing.assert_allclose(late.weights()[name], expected, 1e-12, err_msg=f"{rule}: {name}")
        assert_alike(b, late)


def _state(b: BindingUnderTest, value: float) -> Any:
    layers = [b.make(np.full(3, value)), (b.make(np.full(() if b.copies_scalars else (1,), value)), "tanh")]
    weights = {"w": b.make(np.full((2, 2), value)), "layers": layers}
    return b.state(weights=weights, single=b.make(np.full(4, value), "float32"), log=[0], epoch=0)


def _change(b: BindingUnderTest, state: Any, value: float) -> None:
    """Change everything, as scripts do: by another value for an attribute, a key, or an element."""
    other = _state(b, value)
    state.weights["w"] = other.weights["w"]
    state.weights["layers"][0] = other.weights["layers"][0]
    state.weights["layers"][1] = other.weights["layers"][1]
    state.single = other.single
    state.log.append(value)
    state.epoch += 3


def _content(b: BindingUnderTest, state: Any) -> Any:
    """Content of a state, as values that can be compared and pickled."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in sorted(value.items())}
        if isinstance(value, list | tuple):
            return type(value)(plain(each) for each in value)
        if isinstance(value, str | int | float):
            return value
        return b.dtype(value), b.values(value).tolist()

    return [plain(getattr(state, name)) for name in ("weights", "single", "log", "epoch")]
