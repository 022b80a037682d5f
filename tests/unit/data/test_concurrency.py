"""How many threads load at once: few while samples need the processors, all while they wait for storage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.data.loading.concurrency import FEW, Concurrency

MS = 1e-3


def after(*samples: tuple[float, float, float], threads: int = 8, cpus: int = 2, decodes: bool = True) -> Concurrency:
    concurrency = Concurrency(threads, cpus, decodes)
    for sample in samples:
        concurrency.note(*sample)
    return concurrency


def test_decoding_keeps_to_the_processors() -> None:
    assert after().number == 2
    assert after(*[(1.2 * MS, 1 * MS, 0.1 * MS)] * 100).number == 2
    assert after(*[(1.2 * MS, 1 * MS, 0.1 * MS)] * 100, cpus=4).number == 4
    assert after(*[(1.2 * MS, 1 * MS, 0.1 * MS)] * 100, cpus=64).number == 8
    assert after(threads=1, cpus=4).number == 1


def test_slow_storage_gets_all_threads_after_one_sample_and_loses_them_when_it_is_fast() -> None:
    slow, cached = (21 * MS, 1 * MS, 20 * MS), (1.2 * MS, 1 * MS, 0.1 * MS)
    assert after(slow).number == 8
    assert after(*[(4 * MS, 1 * MS, 3 * MS)] * 5).number == 8
    assert after(slow, *[cached] * 50).number == 2
    assert after(slow, *[cached] * 50, slow).number == 8


def test_one_wait_for_the_gil_is_no_slow_storage() -> None:
    decode, held_up = (1.2 * MS, 1 * MS, 0.1 * MS), (6.6 * MS, 1 * MS, 5.6 * MS)
    assert after(*[decode] * 9, held_up, *[decode] * 9, held_up).number <= 3


def test_waits_below_the_cpu_time_get_the_threads_that_fill_the_processors() -> None:
    assert after(*[(17 * MS, 10 * MS, 7 * MS)] * 50).number == 3


def test_all_threads_read_what_needs_no_decoding() -> None:
    assert after(decodes=False).number == 8
    assert after(*[(1.2 * MS, 1 * MS, 0.1 * MS)] * 50, decodes=False).number == 8


def test_samples_from_memory_wake_few_threads() -> None:
    fast, slow = (0.05 * MS, 0.04 * MS, 0.01 * MS), (20 * MS, 0.1 * MS, 19 * MS)
    for decodes in (True, False):
        found = after(*[fast] * 50, cpus=16, decodes=decodes)
        assert (found.is_fast, found.first, found.number) == (True, FEW, 8)
        found.note(*slow)
        assert (found.is_fast, found.first) == (False, 8)


def test_a_mix_of_fast_and_slow_samples_is_slow() -> None:
    assert not after(*[(20 * MS, 0.1 * MS, 19 * MS), *[(0.05 * MS, 0.04 * MS, 0.01 * MS)] * 9] * 5).is_fast


@given(
    st.integers(1, 64),
    st.integers(1, 256),
    st.lists(st.tuples(*[st.floats(0.0, 1e6)] * 3)),
    st.booleans(),
)
def test_at_least_one_thread_loads_and_no_more_than_there_are(
    threads: int, cpus: int, samples: list[tuple[float, float, float]], decodes: bool
) -> None:
    concurrency = after(*samples, threads=threads, cpus=cpus, decodes=decodes)
    assert 1 <= concurrency.first <= concurrency.number <= threads
    assert concurrency.number >= min(threads, cpus)


def test_the_example_of_the_module() -> None:
    concurrency = Concurrency(threads=8, cpus=2, decodes=True)
    assert concurrency.number == 2
    concurrency.note(sample_s=0.021, cpu_s=0.001, waited_s=0.02)
    assert concurrency.number == 8


def test_whole_batches_ahead_are_as_many_as_the_threads_that_read_them_need() -> None:
    """Whatever the number of processors: each batch more takes memory."""
    whole = after(*[(0.01 * MS, 0.01 * MS, 0.0)] * 5, cpus=64, decodes=False)
    assert (whole.ahead, whole.first) == (2, FEW)
    whole.form = object()
    assert whole.ahead == 2 * FEW
