"""Programs of the model: what each rank does, step by step, without waiting for the collectives that it began.

ProgramStep(GIVE, "a")          # begins an all-reduce of four bytes as soon as the one before it by this name is over
ProgramStep(WAIT)               # goes on when nothing is in flight
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, final

GIVE, BIG, REFUSE, JOIN, WAIT = "give", "big", "refuse", "join", "wait"


@final
class ProgramStep(NamedTuple):
    """Step of a program. ``shape`` is the number of elements. A ``BIG`` one needs the engine, in which its ranks meet.

    A step whose ``meant`` is not its ``process_set`` was meant for the set ``meant``, and calls the other by mistake.
    """

    kind: str
    name: str = ""
    shape: int = 1
    process_set: int = 0
    meant: int = 0


Program: TypeAlias = tuple[ProgramStep, ...]


def of(text: str) -> Program:
    """Parse the short notation of a program.

    >>> of("a A")
    (ProgramStep(kind='give', name='a', shape=1, process_set=0, meant=0), ProgramStep(kind='big', name='A', shape=1, \
process_set=0, meant=0))

    A capital is ``BIG``, a minus ``REFUSE``, ``a2`` has two elements; ``a@1`` is in process set 1, ``a@1!`` by mistake.
    """
    return tuple(_step(word) for word in text.split())


def _step(word: str) -> ProgramStep:
    if word in (JOIN, WAIT):
        return ProgramStep(word)
    word, _, place = word.partition("@")
    kind = REFUSE if word.startswith("-") else BIG if word[0].isupper() else GIVE
    name, process_set = word.lstrip("-"), int(place.rstrip("!") or 0)
    return ProgramStep(kind, name[0], int(name[1:] or 1), process_set, 0 if place.endswith("!") else process_set)
