"""The descriptor by which threads wake a loop."""

from __future__ import annotations

import os
import select

from farandole.control.wakeup import Wakeup


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_it_is_readable_from_a_signal_until_it_is_cleared() -> None:
    wakeup = Wakeup()
    assert not is_readable(wakeup.fd)
    assert not wakeup.clear()
    wakeup.signal()
    wakeup.signal()
    assert is_readable(wakeup.fd)
    assert wakeup.clear()
    assert not is_readable(wakeup.fd)
    wakeup.close()


def test_a_signal_after_it_is_closed_goes_to_no_other_file() -> None:
    wakeup = Wakeup()
    number = wakeup.fd
    wakeup.close()
    other = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    if other != number:
        os.dup2(other, number, inheritable=False)
        os.close(other)
    wakeup.signal()
    wakeup.close()
    assert not wakeup.clear()
    assert not is_readable(number)
    os.close(number)
