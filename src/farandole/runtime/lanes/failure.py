"""Failures: the reason why a collective or a generation ended, from which every waiter raises an error of its own.

failure = Failure(AbortError, "rank 1 on b was killed by SIGKILL")
raise failure.fresh()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from farandole.errors import (
    AbortError,
    CollectiveError,
    DivergenceError,
    DuplicateNameError,
    EngineError,
    FarandoleError,
    MismatchError,
    StallError,
    UnsupportedError,
    UsageError,
)

_BY_NAME: dict[str, type[FarandoleError]] = {
    kind.__name__: kind
    for kind in (
        CollectiveError, MismatchError, StallError, AbortError, EngineError,
        UsageError, UnsupportedError, DuplicateNameError, DivergenceError,
    )
}  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """Class and text of an error, and its cause on this rank."""

    kind: type[FarandoleError]
    text: str
    cause: BaseException | None = None

    @classmethod
    def named(cls, kind: str, text: str) -> Failure:
        """Make a failure from a message's texts; an unknown class becomes a ``CollectiveError``."""
        return cls(_BY_NAME.get(kind, CollectiveError), text)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Make a failure from an exception in a collective; an ``EngineError``, unless it is a ``CollectiveError``."""
        if isinstance(error, CollectiveError):
            return cls(type(error), str(error), error)
        return cls(EngineError, f"the collective could not be executed: {type(error).__name__}: {error}", error)

    def fresh(self) -> FarandoleError:
        """Make a new exception to raise: a shared one would collect the tracebacks of all threads that raise it."""
        error = self.kind(self.text)
        error.__cause__ = self.cause
        return error
