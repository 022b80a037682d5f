"""Recovery of optimizers whose state is in parts, each on two ranks, after the loss of some of the ranks.

claims = allgather_object(ShardClaim(step=7, parts={"optimizer": (3, (0, 2))}))
recovery_plan(claims)                   # the same on every rank: which rank sends which part

Pure. A vote that some ranks saw pass and others did not is settled here: if any rank is a step further, those whose
vote failed give their parts as of that step, which they have kept, too (``ShardedOptimizer``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farandole.elastic.membership.vote import NEW


class ShardClaim(NamedTuple):
    """Claim of one rank when a generation begins: the state that it has.

    ``step``: as in ``VoteClaim``. ``parts``: by optimizer, the number of parts in the last generation and those that it
    keeps; ``None`` if it has the whole state. ``is_ahead``: it has its parts as of the next step, too.
    ``committed``: step of its last commit, ``NEW`` if there was none.
    """

    step: int
    parts: Mapping[str, tuple[int, tuple[int, ...]] | None]
    is_ahead: bool = False
    committed: int = NEW


class RecoveryPlan(NamedTuple):
    """Plan by which the ranks get whole states again, as of ``step`` (``NEW``: no rank has one).

    ``sources``: by optimizer, the rank that sends each part; empty if a rank has the whole, which the others receive
    by the sync of the state. ``lost``: by optimizer, the parts that no rank has; then all go back to ``committed``.
    """

    step: int
    sources: dict[str, list[int]]
    lost: dict[str, list[int]]
    committed: int

    @property
    def goes_back(self) -> bool:
        """True if the ranks cannot go on from ``step``."""
        return bool(self.lost) or (self.step == NEW and self.committed > NEW)


def recovery_plan(claims: Sequence[ShardClaim]) -> RecoveryPlan:
    """Decide which rank sends which part.

    >>> torn = [ShardClaim(7, {"a": (3, (0, 2))}), ShardClaim(6, {"a": (3, (1, 0))}, is_ahead=True)]
    >>> recovery_plan(torn)
    RecoveryPlan(step=7, sources={'a': [0, 1, 0]}, lost={}, committed=-1)
    """
    step = max(claim.step for claim in claims)
    sources, lost = dict[str, list[int]](), dict[str, list[int]]()
    for name in claims[0].parts if step > NEW else ():
        found = {rank: claim.parts[name] for rank, claim in enumerate(claims) if _reaches(claim, step)}
        current = [parts for rank, parts in found.items() if claims[rank].step == step]
        if None in current:
            sources[name] = []
            continue
        size = next(parts[0] for parts in current if parts is not None)
        having = {rank: parts[1] for rank, parts in found.items() if parts is not None}
        by_part = [next((rank for rank, own in having.items() if part in own), -1) for part in range(size)]
        sources[name] = by_part
        if -1 in by_part:
            lost[name] = [part for part, rank in enumerate(by_part) if rank < 0]
    return RecoveryPlan(step, sources, lost, max(claim.committed for claim in claims))


def _reaches(claim: ShardClaim, step: int) -> bool:
    return claim.step == step or (claim.step == step - 1 and claim.step > NEW and claim.is_ahead)
