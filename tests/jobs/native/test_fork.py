"""Engine memory and forked processes, such as a data loader's workers: they do not get it, and do not disturb it."""

from __future__ import annotations

import ctypes
import gc
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from farandole.native import core

NBYTES = 8 << 20


def _endpoint() -> core.Endpoint:
    return core.Endpoint(0, ["the only rank"], "a test", 10.0, lambda said: [said])


def _shared_bytes(pid: int) -> int:
    """How much memory shared between ranks this process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    ends = [line.split()[0].split("-") for line in lines if "memfd:farandole" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ends)


def _in_child(run: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_has_none_of_it() -> None:
    held = _shared_bytes(os.getpid())
    endpoint = _endpoint()
    region = endpoint.allocate(NBYTES)
    assert _shared_bytes(os.getpid()) >= held + NBYTES

    def look() -> None:
        assert _shared_bytes(os.getpid()) == 0

    _in_child(look)
    ctypes.memset(region.address, 1, NBYTES)  # the parent's is where it was
    endpoint.close()


def test_a_child_that_drops_it_unmaps_nothing() -> None:
    """At the addresses something else may lie by then: here the child's own memory does."""
    owned = [_endpoint()]
    regions = [owned[0].allocate(NBYTES)]
    address, mmap = regions[0].address, ctypes.CDLL(None).mmap
    mmap.restype = ctypes.c_void_p
    mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    read_write, private, anonymous, where_nothing_is = 3, 0x02, 0x20, 0x100000

    def drop() -> None:
        assert mmap(address, NBYTES, read_write, private | anonymous | where_nothing_is, -1, 0) == address
        assert not any(owned[0].statistics().values())
        owned[0].close()
        owned.clear()
        regions.clear()
        gc.collect()
        ctypes.memset(address, 1, NBYTES)

    _in_child(drop)
    assert owned[0].statistics()["collectives"] > 0
    owned[0].close()


def test_children_that_live_on_keep_nothing() -> None:
    """As persistent loader workers do over several shutdown() and init(): all shared memory goes with the sessions."""
    pids, pipes = [], []
    for _ in range(4):
        endpoint = _endpoint()
        region = endpoint.allocate(NBYTES)
        wakes, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(end)
            os.read(wakes, 1)
            os._exit(0)
        os.close(wakes)
        pids.append(pid)
        pipes.append(end)
        endpoint.close()
        del region, endpoint
    try:
        assert [_shared_bytes(pid) for pid in pids] == [0] * 4
    finally:
        for end in pipes:
            os.close(end)
        for pid in pids:
            os.waitpid(pid, 0)
