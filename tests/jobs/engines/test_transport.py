"""What transports share: making one may be given up, and what has failed stays failed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from farandole.collective import Array, DType
from farandole.engines.arrays import plain_memory
from farandole.engines.engine import Group
from farandole.engines.transport import Parcel, Transport, interruptible
from farandole.errors import AbortError, EngineError, StallError
from tests.support.patience import PATIENCE_S

GROUP = Group(0, (0, 1), ("a", "b"), 1, "lane", 0.5)


class Recorded(Transport):
    """A wire that notes what is asked of it, and stalls where it is told to."""

    def __init__(self) -> None:
        super().__init__(GROUP)
        self.moved: list[tuple[Sequence[Parcel], Sequence[Parcel]]] = []
        self.stall = False
        self.released: list[bool] = []

    def _move(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        if self.stall:
            raise self.stalled(1)
        self.moved.append((sends, receives))

    def _interrupt(self) -> None:
        pass

    def _release(self, clean: bool) -> None:
        self.released.append(clean)


def array(count: int) -> Array:
    return plain_memory(64).array(DType.FLOAT32, 0, count)


def test_nothing_empty_travels_and_what_is_sent_is_counted() -> None:
    wire, full = Recorded(), array(3)
    wire.transfer([(1, full), (0, array(0))], [(1, array(0))])
    assert wire.moved == [([(1, full)], [])]
    assert (wire.transfers, wire.bytes_sent) == (1, 12)


def test_the_first_failure_stays() -> None:
    wire = Recorded()
    wire.stall = True
    for _ in range(2):
        with pytest.raises(StallError, match=r"rank 1 on b did not join a collective of lane in 0.5 s"):
            wire.transfer([], [(1, array(1))])
        wire.stall = False
    wire.close()
    assert wire.released == [False]
    wire.abort("rank 1 was killed")
    with pytest.raises(AbortError, match="rank 1 was killed"):
        wire.check()


def test_closing_twice_is_clean_once() -> None:
    wire = Recorded()
    wire.close()
    wire.close()
    assert wire.released == [True, False]
    with pytest.raises(EngineError, match="is closed"):
        wire.transfer([], [])


def test_what_is_being_made_is_given_up_when_the_generation_ends() -> None:
    group = Group(0, (0, 1), ("a", "b"), 1, "lane")
    started, library = threading.Event(), threading.Event()

    def make() -> None:
        started.set()
        library.wait(PATIENCE_S)

    def end() -> None:
        started.wait(PATIENCE_S)
        group.broken.set()

    other = threading.Thread(target=end)
    other.start()
    with pytest.raises(AbortError, match="the generation ended while a wire of lane was being made"):
        interruptible(group, "a wire", 60.0, make)
    other.join()
    library.set()


def test_making_has_a_limit_and_passes_on_what_is_raised() -> None:
    library = threading.Event()
    with pytest.raises(StallError, match=r"a wire of lane could not be made within 0.05 s: not every member took part"):
        interruptible(GROUP, "a wire", 0.05, library.wait)
    library.set()
    with pytest.raises(ZeroDivisionError):
        interruptible(GROUP, "a wire", 60.0, lambda: 1 // 0)
    assert interruptible(GROUP, "a wire", 60.0, lambda: "made") == "made"
