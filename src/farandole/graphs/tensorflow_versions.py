"""Versions of TensorFlow whose graphs can call Farandole's native operation directly."""

from __future__ import annotations

import platform
import sys

FIRST, LAST = (2, 16), (2, 21)
"""First and last version whose native interface is known."""


def lack(version: str) -> str:
    """Reason why the native operation does not work with this TensorFlow version and platform; "" if it does.

    >>> lack("2.15.1")
    'TensorFlow 2.15.1 is none of 2.16 to 2.21'
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return f"it is for Linux with glibc, this is {sys.platform}"
    if not FIRST <= _numbers(version) <= LAST:
        return f"TensorFlow {version} is none of {_text(FIRST)} to {_text(LAST)}"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
