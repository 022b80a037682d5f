"""Space of a search: the names of hyper-parameters, and the values that each may have.

    space = Space.of({"lr": {"low": 1e-4, "high": 1.0, "log": True}, "width": [16, 32, 64], "depth": (1, 4)})
    space.parameters["lr"]                          # Range(low=0.0001, high=1.0, log=True, whole=False)
    Space.read("space.toml")                        # the same, as tables of TOML

A list means choices, a pair of numbers a range, and a table has all options. Pure, except for reading the file.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

import msgspec

from farandole.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Value: TypeAlias = "bool | int | float | str"

KEYS = ("low", "high", "log", "step", "choices")

EXAMPLE = "[lr]\nlow = 1e-4\nhigh = 1.0\nlog = true\n\n[batch]\nchoices = [32, 64, 128]"
"""A space as written in a file."""


@final
class Range(msgspec.Struct, frozen=True):
    """Numbers from ``low`` to ``high``, both included; integers if ``whole``, on a logarithmic scale if ``log``.

    With a ``step``, only ``low`` and numbers that lie whole steps above it.
    """

    low: float
    high: float
    log: bool = False
    step: float = 0.0
    whole: bool = False

    def contains(self, value: object) -> bool:
        """True for a value that a trial may have.

        >>> Range(1, 4, whole=True).contains(2), Range(1, 4, whole=True).contains(2.5)
        (True, False)
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return not self.whole or float(value).is_integer()

    def of(self, value: Value) -> Value:
        """A value in the range, with the type that the log of a search returns: an integer or a float."""
        return int(value) if self.whole else float(value)


@final
class Choices(msgspec.Struct, frozen=True):
    """One of several values without an order."""

    choices: tuple[Value, ...]

    def contains(self, value: object) -> bool:
        """True for a value that a trial may have."""
        return any(type(value) is type(each) and value == each for each in self.choices)

    def of(self, value: Value) -> Value:
        """The choice that equals a value."""
        return next(each for each in self.choices if type(value) is type(each) and value == each)


Parameter: TypeAlias = Range | Choices


@final
class Space(msgspec.Struct, frozen=True):
    """Hyper-parameters by name, in the order in which they were given."""

    parameters: dict[str, Parameter]

    @classmethod
    def of(cls, told: Space | Mapping[str, Any]) -> Space:
        """Make a space from the argument of a user; raises ``UsageError``, with advice, if it is no space."""
        if isinstance(told, Space):
            return cls.of(told.parameters)
        if not isinstance(told, Mapping) or not told:
            raise UsageError(f"the space of a search has a name for each hyper-parameter, found {told!r}: {_advice()}")
        return cls({str(name): _parameter(str(name), value) for name, value in told.items()})

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Space:
        """Read a file of TOML with a table for each hyper-parameter."""
        try:
            told = tomllib.loads(Path(path).read_text())
        except OSError as error:
            raise UsageError(f"the space {path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"the space {path} is no TOML: {error}; {_advice()}") from error
        return cls.of(told)

    def check(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Values in the form in which trials get them, the same after a search is resumed.

        Raises ``UsageError`` unless there is a valid value for every hyper-parameter, and no other value.
        """
        values = {name: _plain(value) for name, value in values.items()}
        if missing := [name for name in self.parameters if name not in values]:
            raise UsageError(f"a trial has no value for {', '.join(missing)}, found {dict(values)}")
        for name, value in values.items():
            if name not in self.parameters:
                legal = ", ".join(self.parameters)
                raise UsageError(f"{name} is no hyper-parameter of this search; it has {legal}")
            if not self.parameters[name].contains(value):
                raise UsageError(f"{name}={value!r} is not in {self.parameters[name]}")
        return {name: self.parameters[name].of(value) for name, value in values.items()}


def _parameter(name: str, told: Any) -> Parameter:
    if isinstance(told, Range):
        return told
    if isinstance(told, Choices):
        return _choice(name, told.choices)
    if isinstance(told, list):
        return _choice(name, told)
    if isinstance(told, tuple) and len(told) == 2:
        return _range(name, {"low": told[0], "high": told[1]})
    if not isinstance(told, Mapping):
        raise UsageError(f"the hyper-parameter {name} is {told!r}: {_advice()}")
    if unknown := [key for key in told if key not in KEYS]:
        raise UsageError(f"the hyper-parameter {name} has {unknown[0]!r}; the legal words are {', '.join(KEYS)}")
    if "choices" in told:
        if len(told) > 1:
            raise UsageError(f"the hyper-parameter {name} has choices and also {', '.join(set(told) - {'choices'})}")
        return _choice(name, told["choices"])
    return _range(name, told)


def _choice(name: str, told: Any) -> Choices:
    is_plain = isinstance(told, list | tuple) and all(isinstance(each, bool | int | float | str) for each in told)
    if not is_plain or not told:
        raise UsageError(f"the choices of {name} are {told!r}: give a list of numbers, strings, or true and false")
    choices = [_plain(each) for each in told]
    for i, each in enumerate(choices):
        if other := [one for one in choices[:i] if one == each and repr(one) != repr(each)] or [each] * (each != each):
            raise UsageError(
                f"the choices of {name} are {told!r}: a log cannot distinguish {other[0]!r} from {each!r}. "
                'Leave one out, or write it as a string, such as "true"'
            )
    return Choices(tuple(choices))


def _plain(value: Any) -> Any:
    """A value as a plain type of Python: no log of trials keeps other classes, such as NumPy's floats.

    >>> import enum
    >>> _plain(enum.IntEnum("Depth", "two")(1))
    1
    """
    kind = next((each for each in (bool, int, float) if isinstance(value, each)), None)
    return kind(value) if kind else str.__str__(value) if isinstance(value, str) else value


def _range(name: str, told: Mapping[str, Any]) -> Range:
    low, high, log, step = told.get("low"), told.get("high"), told.get("log", False), told.get("step", 0)
    numbers = [low, high, step]
    if any(isinstance(each, bool) or not isinstance(each, int | float) or not math.isfinite(each) for each in numbers):
        raise UsageError(f"the range of {name} is {dict(told)!r}: give low and high as numbers; {_advice()}")
    if not isinstance(log, bool):
        raise UsageError(f"log of {name} is {log!r}: write true or false")
    if low > high or step < 0:  # type: ignore[operator] # numbers, as seen above
        raise UsageError(f"the range of {name} goes from {low} to {high} in steps of {step}: low must not exceed high")
    if log and (low <= 0 or step):  # type: ignore[operator]
        raise UsageError(f"the range of {name} is logarithmic: low must be above 0, and there are no steps")
    whole = all(isinstance(each, int) for each in numbers)
    return Range(float(low), float(high), log, float(step), whole)  # type: ignore[arg-type]


def _advice() -> str:
    return f"write, for example,\n{EXAMPLE}"
