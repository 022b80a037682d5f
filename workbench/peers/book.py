"""Pages: every state of a rank or of the controller, each once, with the successor for each event.

A search reaches the same state of one part in very many states of the whole; the successor is computed once.

Fields of the product's classes are named here: a field that is renamed there must be renamed here, or states that
differ in it count as equal (or equal ones as different), and nothing fails.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Hashable
from typing import Any, final

import msgspec

from farandole.runtime.coordination.rank_set import RankSet
from farandole.runtime.lanes.grants import Grant
from workbench.peers.controller import Coordinator, Told
from workbench.peers.rank import Event, Rank, Said, View

_ONLY_TOLD = frozenset({"_last", "_left", "_ordered_s", "rejected", "round", "_hosts", "since_s"})
"""Fields that no decision of the model depends on: texts and counters for reports, and times, which are all 0."""

_IN_ORDER = frozenset({"_known", "_lines", "_proposals"})
"""Dictionaries whose order is part of the state: the oldest entry is used first, or forgotten first."""


def freeze(value: Any) -> Hashable:
    """Turn a state into a key: equal for equal states, whatever their types."""
    if value is None or isinstance(value, str | int | float | bytes | RankSet):
        return value
    if isinstance(value, dict):
        return tuple(sorted((freeze(key), freeze(each)) for key, each in value.items()))
    if isinstance(value, list | tuple):
        return tuple(freeze(each) for each in value)
    if isinstance(value, set | frozenset):
        return tuple(sorted(value))
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, msgspec.Struct):
        return msgspec.msgpack.encode(value)
    if isinstance(value, Grant):
        return value.number, value.is_open, freeze(value._said)
    return tuple(
        freeze(list(own.items()) if name in _IN_ORDER else own)
        for name in _fields(value)
        if name not in _ONLY_TOLD
        for own in [getattr(value, name)]
    )


def _fields(value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [each.name for each in dataclasses.fields(value)]
    slots = getattr(type(value), "__slots__", None)
    return list(slots) if slots is not None else list(vars(value))


@final
class RankPage:
    """State of a rank, with its successor for each event."""

    __slots__ = ("_book", "_frozen", "_known", "number", "view")

    def __init__(self, book: PeerStates, number: int, rank: Rank) -> None:
        self._book, self.number, self.view = book, number, rank.view()
        self._frozen = pickle.dumps(rank)
        self._known: dict[Event, tuple[RankPage, list[Said]]] = {}

    def turn(self, event: Event) -> tuple[RankPage, list[Said]]:
        """See ``Rank``."""
        found = self._known.get(event)
        if found is None:
            rank: Rank = pickle.loads(self._frozen)  # noqa: S301 (our own)
            said = rank.turn(event)
            found = self._known[event] = self._book.rank(rank), said
        return found


@final
class ControllerPage:
    """State of the controller, with its successor for each event."""

    __slots__ = ("_book", "_frozen", "_known", "may_expire", "number", "undecided")

    def __init__(self, book: PeerStates, number: int, controller: Coordinator) -> None:
        self._book, self.number = book, number
        self.undecided, self.may_expire = controller.undecided, controller.may_expire
        self._frozen = pickle.dumps(controller)
        self._known: dict[Event, tuple[ControllerPage, list[Told]]] = {}

    def turn(self, event: Event) -> tuple[ControllerPage, list[Told]]:
        """See ``Coordinator``."""
        found = self._known.get(event)
        if found is None:
            controller: Coordinator = pickle.loads(self._frozen)  # noqa: S301 (our own)
            told = controller.turn(event)
            found = self._known[event] = self._book.controller(controller), told
        return found


@final
class PeerStates:
    """All pages of one search; factory of the machines of its worlds."""

    def __init__(self) -> None:
        self._ranks: dict[Hashable, RankPage] = {}
        self._controllers: dict[Hashable, ControllerPage] = {}

    def rank(self, rank: Rank) -> RankPage:
        """Page of this state; a new page for a new state."""
        key = freeze(rank)
        page = self._ranks.get(key)
        if page is None:
            page = self._ranks[key] = RankPage(self, len(self._ranks), rank)
        return page

    def controller(self, controller: Coordinator) -> ControllerPage:
        """Page of this state; a new page for a new state."""
        key = freeze(controller)
        page = self._controllers.get(key)
        if page is None:
            page = self._controllers[key] = ControllerPage(self, len(self._controllers), controller)
        return page


@final
class LiveRank:
    """Rank of a simulation: it changes in place, and earlier states are not kept."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.view: View = rank.view()

    def turn(self, event: Event) -> tuple[LiveRank, list[Said]]:
        """See ``Rank``."""
        said = self._rank.turn(event)
        self.view = self._rank.view()
        return self, said


@final
class LiveController:
    """Controller of a simulation: it changes in place."""

    def __init__(self, controller: Coordinator) -> None:
        self._controller = controller
        self.undecided = self.may_expire = False

    def turn(self, event: Event) -> tuple[LiveController, list[Told]]:
        """See ``Coordinator``."""
        told = self._controller.turn(event)
        self.undecided, self.may_expire = self._controller.undecided, self._controller.may_expire
        return self, told


@final
class LiveMachines:
    """Factory of the machines of a simulation."""

    def rank(self, rank: Rank) -> LiveRank:
        """Machine of a rank with this initial state."""
        return LiveRank(rank)

    def controller(self, controller: Coordinator) -> LiveController:
        """Machine of a controller with this initial state."""
        return LiveController(controller)
