"""Hours of the day in which leases may run.

>>> hours = open_hours(["20-8"])
>>> 23 in hours, 7 in hours, 8 in hours
(True, True, False)
>>> closes_s(hours, now_s=23 * 3600, utc_offset_s=0) / 3600
32.0
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from functools import lru_cache

from farandole.errors import SettingsError

DAY = 24
HOUR_S = 3600.0


def open_hours(windows: Iterable[str]) -> frozenset[int]:
    """Hours of ``FROM-TO`` texts; without any text, the whole day. Raises ``SettingsError`` for an invalid text."""
    return _hours(tuple(windows))


@lru_cache(maxsize=64)
def _hours(windows: tuple[str, ...]) -> frozenset[int]:
    hours: set[int] = set()
    for text in windows:
        found = re.fullmatch(r"\s*(\d\d?)\s*-\s*(\d\d?)\s*", text)
        begin, end = (int(found[1]), int(found[2])) if found else (-1, -1)
        if not 0 <= begin < DAY or not 0 <= end <= DAY or begin == end:
            raise SettingsError(f"{text!r} is no window of hours: write FROM-TO in hours of the day, as in '20-8'")
        hours |= {(begin + i) % DAY for i in range((end - begin) % DAY or DAY)}
    return frozenset(hours) or frozenset(range(DAY))


def windows_of(hours: Collection[int]) -> tuple[str, ...]:
    """``FROM-TO`` texts of hours, the inverse of ``open_hours``.

    >>> windows_of({22, 23, 0, 1, 12})
    ('12-13', '22-2')
    """
    if len(set(hours)) == DAY:
        return ()
    found = []
    for begin in sorted(hours):
        if (begin - 1) % DAY not in hours:
            length = next(i for i in range(1, DAY + 1) if (begin + i) % DAY not in hours)
            found.append(f"{begin}-{(begin + length) % DAY or DAY}")
    return tuple(found)


def closes_s(hours: frozenset[int], now_s: float, utc_offset_s: float) -> float:
    """Time at which the current window closes: infinite if all hours are open, ``now_s`` if none is open now."""
    if len(hours) == DAY:
        return math.inf
    local = math.floor((now_s + utc_offset_s) / HOUR_S)
    if local % DAY not in hours:
        return now_s
    until = next(i for i in range(1, DAY + 1) if (local + i) % DAY not in hours)
    return (local + until) * HOUR_S - utc_offset_s
