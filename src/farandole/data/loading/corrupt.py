"""Corrupt samples: which errors tell of one, and how many an epoch may lose to ``on_corrupt="skip"``."""

from __future__ import annotations

from typing import final
from urllib.error import URLError

from farandole.errors import DataError, FarandoleError

MOST_SHARE, MOST_AT_LEAST = 0.01, 4
"""Share of an epoch that may be corrupt, and the number that may be in any case; beyond them the data set is broken."""

OF_THE_MACHINE = (
    MemoryError, ImportError, FileNotFoundError, PermissionError, ConnectionError, TimeoutError, URLError
)  # fmt: skip
"""Errors that are none of a sample; without a number of the system, too, as libraries of networks raise them."""

NETWORK_PACKAGES = ("http", "urllib3", "requests", "httpx", "httpcore", "aiohttp", "botocore")
"""Packages whose errors tell of a network, whatever they derive from."""

OUT_OF_MEMORY = ("OutOfMemoryError", "can't allocate memory", "bad_alloc")
"""What a ``RuntimeError`` says, or is called, where native code has no memory left."""

FALLBACKS = (ImportError, FileNotFoundError)
"""Errors after which a reader takes another package or file: one that it raises in their handler is another error."""


@final
class CorruptSampleError(Exception):
    """A sample cannot be read or decoded, and is to be left out; the cause is the error of its reader."""


def is_corrupt(error: BaseException) -> bool:
    """True if an error is about the bytes of a sample, and not about storage, memory, a package or a wrong call.

    >>> is_corrupt(ValueError("no header")), is_corrupt(FileNotFoundError(2, "No such file or directory"))
    (True, False)
    """
    found: BaseException | None = error
    seen: list[BaseException] = []  # ``raise first from second``, where the second arose from the first, is a circle
    while found is not None and found not in seen:
        if _is_of_the_machine(found):
            return False
        seen.append(found)
        found = found.__cause__ or _handled(found)
    return True


def _handled(error: BaseException) -> BaseException | None:
    """Error of the system that a library of networks handled as it raised ``error``; not one that a reader expects."""
    is_expected = error.__suppress_context__ or isinstance(error.__context__, FALLBACKS)
    return None if is_expected else error.__context__


def _is_of_the_machine(error: BaseException) -> bool:
    """True if an error, without what it was raised from, is none of a sample."""
    if not isinstance(error, Exception) or isinstance(error, OF_THE_MACHINE):
        return True
    if isinstance(error, FarandoleError):
        return not isinstance(error, DataError) or error.is_outage
    if isinstance(error, OSError) and error.errno:
        return True
    text = f"{type(error).__name__} {error}" if isinstance(error, RuntimeError) else ""
    return type(error).__module__.partition(".")[0] in NETWORK_PACKAGES or any(each in text for each in OUT_OF_MEMORY)


def described(error: BaseException) -> str:
    """Text of an error, with its kind unless it is one of ours."""
    return f"{'' if isinstance(error, DataError | CorruptSampleError) else f'{type(error).__name__}: '}{error}"


def most_of(samples: int) -> int:
    """Number of corrupt samples that an epoch of so many may leave out.

    >>> most_of(100), most_of(20_000)
    (4, 200)
    """
    return max(MOST_AT_LEAST, int(MOST_SHARE * samples))
