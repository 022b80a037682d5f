"""States of NumPy arrays: saved, restored and received in place; and a job whose worker is killed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.adapters.numpy import NumpyAdapter, adapter
from farandole.elastic.worker.state_parts import random_parts
from farandole.errors import AbortError, UsageError
from farandole.numpy.elastic import NumpyState
from farandole.runtime.session.init import init, shutdown
from farandole.testing.rank import RankContext
from tests.support.numpy.elastic_training import COMMIT_EVERY, GLOBAL_BATCH, STEPS
from tests.support.paths import SUPPORT
from workbench.jobs import run_job

SCRIPT = SUPPORT / "numpy" / "elastic_training.py"


@pytest.fixture
def job() -> Iterator[None]:
    """A job of this process alone."""
    init()
    yield
    shutdown()


def test_restore_writes_into_the_arrays_that_there_are(job: None) -> None:
    w, whole = np.ones(2), np.zeros((2, 2))
    state: Any = NumpyState(weights={"w": w, "layers": [np.ones(1)]}, column=whole[:, 1], log=[], epoch=0)
    weights, log = state.weights, state.log
    state.epoch = 1
    w += 1
    log.append("a")
    state.commit()
    w += 5
    whole += 3
    weights["layers"].append(np.ones(3))
    weights["new"] = np.ones(1)
    log.append("b")
    state.epoch, drawn = 2, np.random.random()
    state.restore()
    assert state.weights is weights
    assert weights["w"] is w
    assert (w.tolist(), whole.tolist()) == ([2, 2], [[3, 0], [3, 0]])
    assert (list(weights), len(weights["layers"]), log, state.epoch) == (["w", "layers"], 1, ["a"], 1)
    assert np.random.random() == drawn
    w += 1
    state.restore()
    assert w.tolist() == [2, 2], "what was saved is no alias of what is restored"


def test_an_array_that_a_script_replaces_goes_back_to_the_one_that_was_committed(job: None) -> None:
    w = np.ones(2)
    state: Any = NumpyState(w=w, random=np.random.default_rng(1))
    drawn = [state.random.random() for _ in range(2)]
    state.restore()
    for turn in range(2):
        state.w = np.full(3, 5.0)  # the step under way, of which a fault leaves nothing
        state.random = np.random.default_rng(2)
        state.restore()
        assert state.w is w
        assert w.tolist() == [1, 1], turn
    assert [state.random.random() for _ in range(2)] == drawn
    state.w = np.full(2, 7.0)
    state.commit()
    state.w = state.w + 1
    state.restore()
    assert state.w.tolist() == [7, 7]


def read_only(values: list[float]) -> Any:
    """An array like those that NumPy makes of arrays of JAX."""
    array = np.array(values)
    array.flags.writeable = False
    return array


def test_an_array_that_cannot_be_written_is_replaced(job: None) -> None:
    state: Any = NumpyState(table=read_only([1, 2]), best={"w": read_only([3]), "row": np.broadcast_to(4.0, 2)}, n=0)
    for _ in range(2):
        state.restore()
    assert (state.table.tolist(), state.best["w"].tolist(), state.best["row"].tolist()) == ([1, 2], [3], [4, 4])
    state.table, state.best["w"] = read_only([5, 6]), read_only([7])
    saved = copy.deepcopy(state.state_dict())
    state.commit()
    state.table, state.best["w"] = read_only([0, 0]), read_only([0])
    state.restore()
    assert (state.table.tolist(), state.best["w"].tolist()) == ([5, 6], [7])
    other: Any = NumpyState(table=read_only([0, 0]), best={"w": read_only([0]), "row": np.zeros(2)}, n=0)
    other.load_state_dict(saved)
    assert (other.table.tolist(), other.best["w"].tolist(), other.best["row"].tolist()) == ([5, 6], [7], [4, 4])
    with pytest.raises(UsageError, match="where this worker has an array of int64 with shape"):
        NumpyState(table=read_only([0]), best={}, n=0).load_state_dict(saved)


def receives(member: RankContext) -> list[Any]:
    """Values that rank 1 cannot write, of its own and of a view of them."""
    init()
    table, own = read_only([member.rank, 1.0]), read_only([5.0 + member.rank])
    state: Any = NumpyState(table=table, view=table[:1], best={"w": own, "pair": (own, "w")})
    if member.rank == 0:
        state.view = np.full(1, 8.0)
    state.sync()
    shutdown()
    assert state.table is state._parts["table"].value
    return [each.tolist() for each in (state.table, state.view, state.best["w"], state.best["pair"][0])]


def test_an_array_that_cannot_be_written_is_received() -> None:
    assert run_job(receives, 2) == [[[0.0, 1.0], [8.0], [5.0], [5.0]]] * 2


def agrees(member: RankContext) -> list[Any]:
    """Rank 1 gets ahead: its keys then have another order than those of rank 0, and there is one more."""
    init()
    generator = np.random.default_rng(member.rank)
    a, b, single = np.full(2, 1.0), np.full(2, 2.0), np.full((2, 2), float(member.rank)).T[:, :1]
    weights = {"a": a, "b": b}
    state: Any = NumpyState(weights=weights, single=single, random=generator)
    state.sync()
    said: list[Any] = [single.tolist()]
    if member.rank == 1:
        weights["a"] = weights.pop("a")
        weights["c"] = np.full(3, 3.0)
        a += 4
        single += 1
        generator.random()
        state._step_vote.step += 1
    state.sync()
    same = weights["a"] is a and weights["b"] is b and state.weights is weights
    said += [same, {key: value.tolist() for key, value in weights.items()}, single.tolist(), generator.random()]
    shutdown()
    return said


def test_all_ranks_get_the_arrays_of_the_newest_state_in_place() -> None:
    one, other = run_job(agrees, 2)
    second = np.random.default_rng(0).random(2)[1]
    weights = {"b": [2, 2], "a": [5, 5], "c": [3, 3, 3]}
    assert one == other == [[[0.0], [0.0]], True, weights, [[1.0], [1.0]], second]


def draws(member: RankContext, weight: float) -> list[Any]:
    """Ranks with random streams of their own, until one is left, and another joins it."""
    init()
    np.random.seed(member.rank)
    state = NumpyState(w=np.full(1, weight * member.rank))
    state.sync()
    if member.rank == 1:
        state = NumpyState(w=np.zeros(1))
        state._joined = True
    else:
        state._step_vote.step += 1
    state.sync()
    drawn = np.random.random()
    shutdown()
    return [drawn, sorted(state._unlike)]


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_ranks_and_newcomers_keep_their_random_streams_where_each_has_its_own(weight: float) -> None:
    (one, told), (other, heard) = run_job(draws, 2, weight)
    assert [one, other] == [np.random.RandomState(seed).random_sample() for seed in (0, 1)]
    assert told == heard != []


def test_equal_states_of_the_global_generators_are_equal_bytes() -> None:
    for part in random_parts().values():
        before = part.tree()
        part.save()
        random.random(), np.random.random()
        changed = part.tree()
        part.restore()
        again = part.tree()
        part.load(changed)
        assert before == again != changed == part.tree()


def differs(member: RankContext) -> str:
    """A state of two programs."""
    init()
    state = NumpyState(w=np.zeros(2 + member.rank))
    try:
        state.sync()
    except (UsageError, AbortError) as error:
        return str(error)
    finally:
        shutdown()
    return ""


def lacks(member: RankContext) -> str:
    """Rank 0 has one array more, and rank 1, which cannot go on, stays."""
    init()
    state = NumpyState(**({} if member.rank else {"w": np.zeros(2)}))
    try:
        state.sync()
    except (UsageError, AbortError) as error:
        member.exchange(b"")
        return f"{type(error).__name__}: {error}"
    finally:
        shutdown()
    return ""


def test_nobody_waits_for_a_worker_whose_script_goes_on_after_a_refused_state() -> None:
    one, other = run_job(lacks, 2)
    assert one.startswith("AbortError: ")
    assert "the state of the job holds w" in one
    assert other.startswith("UsageError: the state of the job holds w")


def test_an_array_of_another_shape_is_another_program() -> None:
    one, other = run_job(differs, 2)
    words = "an array of float64 with shape (2,) where this worker has an array of float64 with shape (3,)"
    assert words in other
    assert one == "" or words in one  # it may have given what it has to give before the other one is heard


def test_a_worker_is_killed_another_one_comes_and_nobody_can_tell(launch: Any, tmp_path: Path) -> None:
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1", "--start-timeout", "120"]
    finished = launch(2, SCRIPT, options=options, arguments=[str(tmp_path), "2"]).ok()
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result-*.json")]
    assert len(results) == 2, finished.stderr
    for found, expected in results:
        assert found["steps"] >= STEPS
        assert found["steps"] % COMMIT_EVERY == 0
        assert found["generation"] >= 2  # 3, unless a survivor was slower than the newcomer
        assert found["processed"] == found["steps"] * GLOBAL_BATCH
        assert found["draw"] == expected["draw"]
        for one, other in zip(found["values"], expected["values"], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)
    assert results[0][0] == results[1][0]


def test_an_array_that_is_in_another_place_too_when_a_fault_comes_is_restored_in_its_own(job: None) -> None:
    """As the iterate of before: ``before["w"] = now["w"]`` begins a step, and the step fails."""
    now, before, both = {"w": np.zeros(2)}, {"w": np.zeros(2)}, {"now": np.full(1, 5.0), "before": np.full(1, 4.0)}
    state: Any = NumpyState(now=now, before=before, both=both, alone=np.full(1, 1.0), other=np.full(1, 2.0))
    for _ in range(3):
        before["w"], now["w"] = now["w"], now["w"] + 1
        state.commit()
    before["w"] = now["w"]
    both["before"] = both["now"]
    state.other = state.alone
    state.restore()
    assert (now["w"].tolist(), before["w"].tolist()) == ([3, 3], [2, 2])
    assert (both["now"].tolist(), both["before"].tolist()) == ([5], [4])
    assert (state.alone.tolist(), state.other.tolist()) == ([1], [2])


def orders(member: RankContext) -> dict[str, list[float]]:
    """Arrays that are all zeros, under names that come in another order on each rank, as those of a ``set`` do."""
    init()
    shapes = {"a": (100, 2), "b": (300,)}
    arrays = {name: np.zeros(shapes[name]) for name in sorted(shapes, reverse=member.rank == 1)}
    state: Any = NumpyState(arrays=arrays)
    state.sync()
    shutdown()
    return {name: np.unique(array).tolist() for name, array in sorted(state.arrays.items())}


def test_arrays_whose_bytes_are_equal_in_another_order_are_received(monkeypatch: pytest.MonkeyPatch) -> None:
    made = adapter.make
    monkeypatch.setattr(NumpyAdapter, "make", lambda _, spec: np.full_like(made(spec), 7))
    assert run_job(orders, 2) == [{"a": [0.0], "b": [0.0]}] * 2


def ties(member: RankContext) -> str:
    """Rank 1 has just come, and has one array for two that the others have since made of it."""
    init()
    w, tied = np.full(2, 3.0), np.full(4, 1.0)
    state: Any = NumpyState(w=w, weights={"in": tied, "out": tied[:2]}, best={"w": w})
    if member.rank == 0:
        state.best["w"] = w.copy()
        state._step_vote.step, state._is_whole = 1, True
    try:
        state.sync()
    except (UsageError, AbortError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutdown()
    return ""


def test_a_worker_whose_arrays_are_one_takes_no_state_in_which_they_are_two() -> None:
    one, other = run_job(ties, 2)
    assert not one or one.startswith("AbortError")
    assert other.startswith("UsageError: best.w and w lie in the same memory on this worker, and not in the state")


def test_a_state_whose_arrays_are_one_takes_no_checkpoint_in_which_they_are_two(job: None) -> None:
    w = np.ones(2)
    saved = NumpyState(w=w, best=w.copy()).state_dict()
    NumpyState(w=w.copy(), best=w).load_state_dict(saved)
    with pytest.raises(UsageError, match="best and w lie in the same memory"):
        NumpyState(w=w, best=w).load_state_dict(saved)
    tied: Any = NumpyState(w=w, best=w)
    w[:] = 5
    NumpyState(w=w, best=w).load_state_dict(tied.state_dict())
