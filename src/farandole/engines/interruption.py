"""Decorator of collectives that end the engine if anything is raised in their middle: Ctrl-C, a lack of memory, a bug.

    @ends_when_interrupted
    def barrier(self) -> None: ...

Members are then at different transfers of one collective, and the next one would take for its own what is left of this.
A decorator and no context manager: the only line at which an exception leaves the engine as it was is the first, where
the collective has not begun. In ``with`` it is also whatever runs before the block is entered.
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
        """End the engine, and let nobody wait for this member; nothing if it has ended."""


E = TypeVar("E", bound=Interruptible)
P = ParamSpec("P")
T = TypeVar("T")


def ends_when_interrupted(method: Callable[Concatenate[E, P], T]) -> Callable[Concatenate[E, P], T]:
    """Have an engine ``interrupted`` by what one of its methods raises."""

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
    """The text of the errors that follow."""
    return f"a collective of {label} was interrupted by {f'{type(error).__name__} {error}'.strip()}"
