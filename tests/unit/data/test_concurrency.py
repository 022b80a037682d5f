"""How many threads load at once: few while samples need the processors, all while they wait for storage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.data.loading.concurrency import FEW, Concurrency

MS = 1e-3


def after(*samples: tuple[float, float, float | None], threads: int = 8, cpus: int = 2) -> Concurrency:
    concurrency = Concurrency(threads, cpus)
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
    assert after(*[decode] * 9, held_up, *[decode] * 9, held_up).number == 2


def test_what_is_not_measured_gets_all_threads() -> None:
    assert Concurrency(8, 2, is_measured=False).number == 8
    assert after((1 * MS, 1 * MS, None)).number == 8


def test_samples_from_memory_wake_few_threads() -> None:
    fast = after(*[(0.05 * MS, 0.04 * MS, 0.01 * MS)] * 50, cpus=16)
    assert (fast.is_fast, fast.first, fast.number) == (True, FEW, 8)
    fast.note(20 * MS, 0.1 * MS, 19 * MS)
    assert (fast.is_fast, fast.first) == (False, 8)


@given(
    st.integers(1, 64),
    st.integers(1, 256),
    st.lists(st.tuples(*[st.floats(0.0, 1e6)] * 2, st.none() | st.floats(0.0, 1e6))),
)
def test_at_least_one_thread_loads_and_no_more_than_there_are(
    threads: int, cpus: int, samples: list[tuple[float, float, float | None]]
) -> None:
    concurrency = after(*samples, threads=threads, cpus=cpus)
    assert 1 <= concurrency.first <= concurrency.number <= threads
    assert concurrency.number >= min(threads, cpus)


def test_the_example_of_the_module() -> None:
    concurrency = Concurrency(threads=8, cpus=2)
    assert concurrency.number == 2
    concurrency.note(sample_s=0.021, cpu_s=0.001, waited_s=0.02)
    assert concurrency.number == 8
