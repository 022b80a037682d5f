"""Decorator that ends the engine if a collective raises an exception half-way: Ctrl-C, a lack of memory, a bug.

    @ends_when_interrupted
    def barrier(self) -> None: ...

Members are then at different transfers of one collective, and the next one would receive leftover data of this one.
It is a decorator and no context manager: an exception may leave the engine unchanged only on the first line, before the
collective has begun. With a context manager that would also hold for the code before the block is entered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from farandole.engines.engine import PayloadError
from farandole.errors import UnsupportedError

REFUSALS = (UnsupportedError, PayloadError)
"""Errors that every member raises before anything moves: the next call works."""


class Interruptible(Protocol):
    """An engine that can be ended by an exception of its own thread."""

    def interrupted(self, error: BaseException) -> None:
        """End the engine and wake the members that wait for this one; does nothing if it has ended."""


E = TypeVar("E", bound=Interruptible)
P = ParamSpec("P")
T = TypeVar("T")


def ends_when_interrupted(method: Callable[Concatenate[E, P], T]) -> Callable[Concatenate[E, P], T]:
    """Call the engine's ``interrupted`` with any exception that the method raises."""

    @functools.wraps(method)
    def collective(self: E, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except REFUSALS:
            raise
        except BaseException as error:
            self.interrupted(error)
            raise

    return collective


def said_of(label: str, error: BaseException) -> str:
    """Text of the errors that later calls raise."""
    return f"a collective of {label} was interrupted by {f'{type(error).__name__} {error}'.strip()}"
