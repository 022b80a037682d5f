"""Phases that overlap, in order, whatever happens in one of them."""

from __future__ import annotations

import gc
import threading

import pytest

from farandole.engines.hybrid.pipeline import IN_FLIGHT, Pipeline

DEADLINE_S = 20.0


def _nothing(piece: int) -> None:
    pass


def test_each_phase_sees_the_pieces_in_order_and_no_piece_too_early() -> None:
    pipeline, said = Pipeline("test"), list[tuple[str, int]]()
    pipeline.run_pieces(
        10,
        lambda k: said.append(("before", k)),
        lambda k: said.append(("across", k)),
        lambda k: said.append(("after", k)),
    )
    for phase in ("before", "across", "after"):
        assert [k for name, k in said if name == phase] == list(range(10))
    for k in range(10):
        assert said.index(("before", k)) < said.index(("across", k)) < said.index(("after", k))
        if k >= IN_FLIGHT:
            assert said.index(("after", k - IN_FLIGHT)) < said.index(("before", k))
    pipeline.close()


def test_a_piece_is_across_while_the_next_is_prepared() -> None:
    pipeline, prepared = Pipeline("test"), [threading.Event() for _ in range(4)]

    def across(k: int) -> None:
        assert prepared[min(k + 1, 3)].wait(DEADLINE_S)

    pipeline.run_pieces(4, lambda k: prepared[k].set(), across, _nothing)
    pipeline.close()


def test_a_single_piece_needs_no_thread() -> None:
    threads = []
    Pipeline("test").run_pieces(1, _nothing, lambda _: threads.append(threading.current_thread()), _nothing)
    assert threads == [threading.current_thread()]


def test_who_carries_nothing_needs_no_thread() -> None:
    pipeline, before = Pipeline("test"), threading.active_count()
    said: list[int] = []
    pipeline.run_pieces(5, said.append, None, said.append)
    assert sorted(said) == sorted([*range(5), *range(5)])
    assert threading.active_count() == before


def test_an_error_across_is_raised_and_the_rest_is_waited_for() -> None:
    pipeline, done = Pipeline("test"), list[int]()

    def across(k: int) -> None:
        if k == 0:
            raise ValueError("piece 0")
        done.append(k)

    with pytest.raises(ValueError, match="piece 0"):
        pipeline.run_pieces(8, _nothing, across, _nothing)
    busy = pipeline.is_busy
    pipeline.drain()
    assert done == list(range(1, IN_FLIGHT))
    assert (busy, pipeline.is_busy) == (True, False)
    pipeline.close()


def test_nothing_is_across_when_an_error_inside_has_been_drained() -> None:
    pipeline, release, done = Pipeline("test"), threading.Event(), list[int]()

    def before(k: int) -> None:
        if k == 2:
            raise KeyboardInterrupt

    def across(k: int) -> None:
        assert release.wait(DEADLINE_S)
        done.append(k)

    with pytest.raises(KeyboardInterrupt):
        pipeline.run_pieces(8, before, across, _nothing)
    assert done == []
    release.set()
    pipeline.drain()
    assert done == [0, 1]
    pipeline.close()
    pipeline.close()


def test_the_thread_ends_with_its_owner() -> None:
    pipeline = Pipeline("test")
    pipeline.run_pieces(3, _nothing, _nothing, _nothing)
    [thread] = [each for each in threading.enumerate() if each.name == "farandole across test"]
    del pipeline
    gc.collect()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
