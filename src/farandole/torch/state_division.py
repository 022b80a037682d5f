"""An optimizer's state of which each rank has a part: what a script may do with it, and how it becomes whole again.

division = StateDivision()
division.shards = shards                    # from now on ``state`` has this rank's part
division.consolidated = gathered
division.take_back(state)                   # ``state`` is whole
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, final

import torch

from farandole.errors import UsageError
from farandole.torch.state_shards import State, StateShards

Part: TypeAlias = dict[str, dict[int, tuple[torch.Tensor, State | None]]]
"""Values and states of a part's pieces, by the names of their parameters and by their first elements."""

DIVISION = "_division"
"""Attribute of the user's optimizer and of its front object, which share their state: the assignment of its parts."""


@final
class StateDivision:
    """Parts of an optimizer's state: ``shards`` if this rank has only its part, ``consolidated`` if gathered here."""

    def __init__(self) -> None:
        self.shards: StateShards | None = None
        self.consolidated: dict[Any, State] | None = None
        self.is_everywhere = False
        self.ahead: dict[int, Part] | None = None
        """Parts as they are after the step whose vote failed on this rank, and may have passed on others."""

    @property
    def is_whole(self) -> bool:
        """True if this rank has the whole state."""
        return self.shards is None or self.is_everywhere

    def take_back(self, state: dict[Any, State]) -> None:
        """Make ``state`` the gathered whole again. Raises ``UsageError`` if it was not gathered here."""
        if self.shards is None:
            return
        if self.consolidated is None:
            raise UsageError(
                f"this rank has part {self.shards.rank} of {self.shards.size} of the optimizer's state, and the ranks, "
                "or the optimizer before it, are others now: call optimizer.consolidate_state_dict(to=None) before "
                "shutdown(), before you wrap the same optimizer again, and before TorchState() with replicas=2"
            )
        rest = of_no_tensor(state)
        state.clear()
        state.update({**self.consolidated, **rest})
        self.let_go(state)

    def let_go(self, state: dict[Any, State]) -> None:
        """Forget the parts, because ``state`` is whole again."""
        self.shards, self.consolidated, self.is_everywhere, self.ahead = None, None, False, None
        answer(state, dict)


@final
class DividedState(defaultdict[Any, State]):
    """Optimizer state by tensor, which refuses changes by the script while the ranks have parts of it."""

    def pop(self, key: Any, *default: Any) -> Any:
        """Remove and return the state of ``key``. Raises ``UsageError`` for a parameter's, while it is in parts."""
        self._require_whole(key)
        return super().pop(key, *default)

    def __setitem__(self, key: Any, value: State) -> None:
        self._require_whole(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self._require_whole(key)
        super().__delitem__(key)

    def _require_whole(self, key: Any) -> None:
        if self.default_factory is refuse_lookup and isinstance(key, torch.Tensor):
            refuse_lookup()


def require_undivided(optimizer: torch.optim.Optimizer) -> None:
    """Restore the whole state of an optimizer that was wrapped before; raises ``UsageError`` if it is in parts."""
    division: StateDivision | None = optimizer.__dict__.pop(DIVISION, None)
    if division is not None:
        division.take_back(optimizer.state)


def answer(state: dict[Any, State], missing: Callable[[], Any]) -> None:
    """Set ``missing`` as the default factory of ``state``."""
    if isinstance(state, defaultdict):
        state.default_factory = missing


def refuse_lookup() -> NoReturn:
    """Raise ``UsageError``: the state of a parameter is in parts."""
    raise UsageError(
        "optimizer.state of a parameter with shard_state=True: other ranks have it, or parts of it. Call "
        "optimizer.consolidate_state_dict(to=None) on every rank, and change what state_dict() gives; load it again"
    )


def of_no_tensor(state: dict[Any, State]) -> dict[Any, State]:
    """Entries of an optimizer's state whose key is not a parameter."""
    return {key: value for key, value in state.items() if not isinstance(key, torch.Tensor)}
