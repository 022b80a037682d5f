"""Identity of an optimizer among the ranks: the label of its lanes, and one order of its parameters.

    identity = OptimizerKey(params, names, process_set)
    if not identity.is_settled(session):
        identity.settle(session, params, is_known)  # collective
    identity.arrange(params)                        # in the same order on all ranks

Parameters that the user has named are matched by name, as in Horovod. A program may then make its optimizers in any
order, or more of them on one rank than on another. Unnamed parameters are matched by position, optimizers by a counter.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

from farandole.errors import UsageError
from farandole.gradients.tensors import Param
from farandole.runtime.collectives.pairing import Unpaired, pairing
from farandole.runtime.session.init import Session, is_aside
from farandole.runtime.session.process_sets import ProcessSet

_made: dict[tuple[str, bool], itertools.count[int]] = {}  # ``itertools.count``: two threads may use one at once
"""Counters that number the labels of equal optimizers; separate ones for tasks that are jobs of one rank."""


def without_numbers(path: str) -> str:
    """Path of a variable, without the numbers that a framework appends to make names unique in a process.

    >>> without_numbers("sequential_1/dense_2/kernel")
    'sequential/dense/kernel'

    The numbers may differ between ranks, if one has made more variables than another.
    """
    return re.sub(r"_\d+(?=[/_:]|$)", "", path)


@final
class Names:
    """Names of parameters: from the user (``are_given``), or made of positions."""

    def __init__(self, named: Iterable[tuple[str, Param]], are_given: bool) -> None:
        self.are_given = are_given
        # By ``id``, because arrays cannot be hashed. Keeping the parameters alive ensures that no ``id`` is reused.
        self._named = {id(param): (name, param) for name, param in named}

    @staticmethod
    def checked(groups: Iterable[Iterable[Param]], named: Iterable[tuple[str, Param]] | None) -> Names:
        """Names of the parameters in an optimizer's ``groups``: from the user's ``named``, or by position.

        Raises ``UsageError`` for names that are not strings, occur twice, or are missing.
        """
        every = [(f"group{i}.{j}", param) for i, group in enumerate(groups) for j, param in enumerate(group)]
        given: list[Any] = every if named is None else list(named)
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in given):
            raise UsageError("named_parameters holds (name, parameter) tuples: pass model.named_parameters()")
        if odd := [name for name, _ in given if not isinstance(name, str)]:
            raise UsageError(f"named_parameters holds the name {odd[0]!r}, a {type(odd[0]).__name__}: names are str")
        twice = [name for name, count in Counter(name for name, _ in given).items() if count > 1]
        if twice:
            found = ", ".join(sorted(twice))
            raise UsageError(f"the names in named_parameters must differ; found more than once: {found}")
        names = Names(given, are_given=named is not None)
        nameless = [name for name, param in every if id(param) not in names._named]
        if nameless:
            raise UsageError(
                f"named_parameters lacks {len(nameless)} of the optimizer's parameters ({', '.join(nameless[:8])}): "
                "pass the named_parameters() of every model that it trains, or None"
            )
        return names

    def pairs(self) -> Iterable[tuple[str, Param]]:
        """Names and parameters."""
        return self._named.values()

    def get(self, param: Param, default: str) -> str:
        """The name of ``param``."""
        return self._named[id(param)][0] if id(param) in self._named else default


@final
class OptimizerKey:
    """Key of an optimizer of ``params`` that the ranks of ``process_set`` share; its label begins with ``kind``."""

    def __init__(self, params: Sequence[Param], names: Names, process_set: ProcessSet, kind: str = "optimizer") -> None:
        self._names, self._process_set = names, process_set
        own = sorted(self.name(param, i) for i, param in enumerate(params)) if names.are_given else []
        ranks = process_set.ranks if process_set.process_set_id else []  # the global set may have no ranks yet
        described = f"{kind} {_short(repr((own, ranks)))}" if own or ranks else kind
        self.label = f"{described}.{next(_made.setdefault((described, is_aside()), itertools.count()))}"
        self._session: weakref.ref[Session] | None = None
        self._order: dict[str, int] = {}

    def rename(self, label: str) -> None:
        """Take a new ``label``, which must be the same on all ranks, and pair again at the next ``settle``."""
        self.label, self._session, self._order = label, None, {}

    def name(self, param: Param, position: int) -> str:
        """Name of a parameter, or its position if it has no name."""
        return self._names.get(param, str(position))

    @property
    def is_reordered(self) -> bool:
        """True if this rank's order of parameters differs from the agreed order."""
        return bool(self._order)

    def is_settled(self, session: Session) -> bool:
        """True if ``settle`` has been called in this session. Called in every step."""
        return self._session is not None and self._session() is session

    def is_of_past(self, session: Session) -> bool:
        """True if ``settle`` was last called in an earlier session."""
        return self._session is not None and self._session() is not session

    def settle(self, session: Session, params: Sequence[Param], is_known: Callable[[str], bool]) -> None:
        """Pair with the other ranks, and agree on an order. Collective, once in each session."""
        own = tuple(self.name(param, i) for i, param in enumerate(params))
        agreed = pairing(session, self._process_set).pair(session, Unpaired(self.label, own), is_known)
        self.label = agreed.label
        self._order = {} if agreed.names == own else {name: i for i, name in enumerate(agreed.names)}
        self._session = weakref.ref(session)  # weak, to let an ended session go; not ``id``, which may be reused

    def withdraw(self, session: Session) -> None:
        """Withdraw this rank from the pairing that ``settle`` waits in."""
        pairing(session, self._process_set).withdraw(self.label)

    def arrange(self, params: Sequence[Param]) -> list[Param]:
        """``params`` in the agreed order; parameters added since are last."""
        if not self._order:
            return list(params)
        last = len(self._order)
        return sorted(params, key=lambda param: self._order.get(self._names.get(param, ""), last))


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=4).hexdigest()
