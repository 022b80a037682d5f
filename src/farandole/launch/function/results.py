"""What the workers of ``farandole.run`` have sent back, and what the caller gets of it.

results = Results()
results.add(place=0, ok=True, payload=...)
results.values()                                # unpickled, in the order of ranks
"""

from __future__ import annotations

import pickle
from collections.abc import Collection
from typing import Any, final

import msgspec

from farandole.errors import RemoteError
from farandole.launch.function.task import Failure, Value


@final
class Results:
    """By place; failures in the order in which they came. Nothing is unpickled while the job runs."""

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}
        self.failures: list[Failure] = []

    def add(self, place: int, ok: bool, payload: bytes) -> None:
        """Keep one."""
        if ok:
            self._values[place] = msgspec.msgpack.decode(payload, type=Value)
        else:
            self.failures.append(msgspec.msgpack.decode(payload, type=Failure))

    @property
    def places(self) -> Collection[int]:
        """Whose function has returned."""
        return self._values.keys()

    def values(self) -> list[Any]:
        """What it returned, in the order of their last ranks."""
        found = sorted((value.rank, place, value.pickled) for place, value in self._values.items())
        return [pickle.loads(pickled) for _, _, pickled in found]  # noqa: S301 (from our own workers)


def raise_again(failures: list[Failure]) -> None:
    """Raise the first that others do not explain, as ``RemoteError`` from the original; nothing if there is none."""
    for failure in sorted(failures, key=lambda each: each.is_consequence)[:1]:
        error = RemoteError(failure.rank, failure.host, failure.summary, failure.traceback)
        raise error from _original(failure)


def _original(failure: Failure) -> BaseException | None:
    """The exception object, where it can be had here: its class may be unknown to this process."""
    try:
        found = pickle.loads(failure.exception)  # noqa: S301 (from our own workers)
    except Exception:
        return None
    return found if isinstance(found, BaseException) else None
