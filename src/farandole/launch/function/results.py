"""Results of ``farandole.run``: collected from its workers, and returned or raised in the caller.

results = Results()
results.add(worker_id=0, ok=True, payload=...)
results.values()                                # unpickled, in rank order
"""

from __future__ import annotations

import pickle
from collections.abc import Collection
from typing import Any, final

import msgspec

from farandole.errors import ControlError, RemoteError
from farandole.launch.function.task import TaskFailure, TaskValue


@final
class Results:
    """Values by ``worker_id``; failures in order of arrival. Nothing is unpickled while the job runs."""

    def __init__(self) -> None:
        self._values: dict[int, TaskValue] = {}
        self.failures: list[TaskFailure] = []

    def add(self, worker_id: int, ok: bool, payload: bytes) -> None:
        """Keep the result of one worker."""
        if ok:
            self._values[worker_id] = msgspec.msgpack.decode(payload, type=TaskValue)
        else:
            self.failures.append(msgspec.msgpack.decode(payload, type=TaskFailure))

    @property
    def has_origin(self) -> bool:
        """True if a worker raised an error that is not a consequence of another worker's exit."""
        return not all(failure.is_consequence for failure in self.failures)

    @property
    def worker_ids(self) -> Collection[int]:
        """Workers whose function has returned."""
        return self._values.keys()

    def values(self) -> list[Any]:
        """Return values, in the order of the last ranks of their workers."""
        found = sorted((value.rank, worker_id, value.pickled) for worker_id, value in self._values.items())
        return [pickle.loads(pickled) for _, _, pickled in found]  # noqa: S301 (from our own workers)


def values_of(results: Results, size: int, words: str, cause: int = -1) -> list[Any]:
    """Return values of a completed job of ``size``, in rank order; ``words``: why it failed, or "".

    Raises ``RemoteError`` if a worker raised, ``ControlError`` for every other failure. If workers raised only because
    another one was lost, that loss is the failure: ``cause`` is the rank that failed first, -1 for a host.
    """
    if not words or results.has_origin or cause in {failure.rank for failure in results.failures}:
        raise_again(results.failures)
    if words:
        raise ControlError(words)
    if missing := [worker_id for worker_id in range(size) if worker_id not in results.worker_ids]:
        raise ControlError(f"ranks {missing} ended well but returned nothing: did the function call os._exit()?")
    return results.values()


def raise_again(failures: list[TaskFailure]) -> None:
    """Raise the first failure that is no consequence, as ``RemoteError`` from the original; return if none."""
    for failure in sorted(failures, key=lambda each: each.is_consequence)[:1]:
        error = RemoteError(failure.rank, failure.host, failure.summary, failure.traceback)
        raise error from _original(failure)


def _original(failure: TaskFailure) -> BaseException | None:
    """The exception object; ``None`` if it cannot be unpickled, for example if its class is unknown here."""
    try:
        found = pickle.loads(failure.exception)  # noqa: S301 (from our own workers)
    except Exception:
        return None
    return found if isinstance(found, BaseException) else None
