"""Which errors tell of a corrupt sample, and how many of them an epoch may leave out."""

from __future__ import annotations

import zlib
from urllib.error import URLError

import pytest

from farandole.data.formats.reading import translated
from farandole.data.loading.corrupt import described, is_corrupt, most_of
from farandole.data.storage.byte_store import unreadable
from farandole.errors import AbortError, DataError, UsageError


def outage() -> DataError:
    found = DataError("no host gave it within 600 s")
    found.is_outage = True
    return found


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def while_handling(error: Exception, handled: BaseException) -> Exception:
    error.__context__ = handled
    return error


def from_none(error: Exception, handled: BaseException) -> Exception:
    error.__suppress_context__ = True
    return while_handling(error, handled)


def circle() -> Exception:
    """As of a reader that falls back on another one, which fails, too, and raises the first error."""
    first = ValueError("no header")
    return caused(first, while_handling(KeyError("no table"), first))


def translated_from(error: Exception) -> DataError:
    with pytest.raises(DataError) as caught, translated("a.tif", "TIFF"):
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DataError("its 12 bytes fail their checksum"), True),
        (zlib.error("incomplete stream"), True),
        (OSError("image file is truncated"), True),  # as Pillow and h5py raise it: no error of the system
        (translated_from(ValueError("no TIFF")), True),
        (translated_from(ModuleNotFoundError("no tifffile", name="tifffile")), False),
        (caused(unreadable("a", 5, OSError(5, "Input/output error")), OSError(5, "Input/output error")), False),
        (FileNotFoundError(2, "No such file or directory"), False),
        (FileNotFoundError("bucket/part-0"), False),  # as fsspec raises it: without a number
        (caused(ValueError("decode"), TimeoutError("timed out")), False),
        (ConnectionResetError("closed by the peer"), False),
        (URLError("no host"), False),
        (caused(ValueError("decode"), MemoryError()), False),
        (while_handling(ValueError("no answer"), OSError(111, "Connection refused")), False),
        (from_none(ValueError("no header"), ImportError("no fast decoder")), True),
        (while_handling(ValueError("no header"), FileNotFoundError(2, "not in the cache of decoded samples")), True),
        (caused(ValueError("no file"), FileNotFoundError(2, "No such file or directory")), False),
        (circle(), True),
        (type("ConnectionError", (OSError,), {"__module__": "requests.exceptions"})("no answer"), False),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), False),  # as torch raises it
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), False),
        (RuntimeError("the decoder has failed"), True),
        (UsageError("Crop(where='left')"), False),
        (outage(), False),
        (caused(ValueError("decode"), outage()), False),
        (caused(DataError("decode"), KeyboardInterrupt()), False),
    ],
)
def test_an_error_of_the_bytes_is_told_from_one_of_the_machine(error: Exception, expected: bool) -> None:
    assert is_corrupt(error) is expected


def test_errors_of_other_ranks_are_none_of_a_sample() -> None:
    assert not is_corrupt(AbortError.__new__(AbortError))


def test_a_few_or_one_in_a_hundred_may_be_left_out() -> None:
    assert [most_of(samples) for samples in (0, 10, 499, 500, 20_000)] == [4, 4, 4, 5, 200]
    assert (described(DataError("a")), described(ValueError("a"))) == ("a", "ValueError: a")
