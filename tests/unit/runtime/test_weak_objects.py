"""Objects that other threads, and signal handlers, add while somebody reads them all."""

from __future__ import annotations

import gc
import sys
import threading

from farandole.runtime.lanes.weak_objects import WeakObjects


class Thing:
    """Something that can be referred to weakly."""


def test_things_are_listed_as_long_as_they_exist() -> None:
    things, kept = WeakObjects[Thing](), [Thing() for _ in range(3)]
    for each in kept:
        things.add(each)
    things.add(Thing())  # gone at once
    assert things.living() == kept
    del kept[1], each
    gc.collect()
    assert things.living() == kept


def test_they_can_be_read_while_a_thread_adds_more() -> None:
    things, over = WeakObjects[Thing](), threading.Event()
    kept = [Thing() for _ in range(50)]
    for each in kept:
        things.add(each)

    def add() -> None:
        while not over.is_set():
            things.add(Thing())

    interval_s = sys.getswitchinterval()
    adding = threading.Thread(target=add)
    adding.start()
    try:
        sys.setswitchinterval(1e-6)
        for _ in range(2000):
            assert things.living()[:50] == kept
    finally:
        sys.setswitchinterval(interval_s)
        over.set()
        adding.join()
