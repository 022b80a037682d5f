"""Terms on which the gradients of one optimizer are reduced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from farandole.collective import Reduction
from farandole.runtime.session.process_sets import ProcessSet, global_process_set


@final
@dataclass(frozen=True)
class Terms:
    """Reduction terms of a distributed optimizer.

    >>> Terms(sparse_as_dense=True).how.op.label
    'Average'

    ``compression`` is the framework's, ``None`` for none. ``groups`` maps ``id(param)`` to the number of its group.
    """

    how: Reduction = field(default_factory=Reduction)
    compression: Any = None
    groups: dict[int, int] = field(default_factory=dict)
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set
