"""Vote on a step, and agreement on one state after only some ranks saw the result of a vote; pure.

    >>> count([Vote(step=7, samples=(4,)), Vote(step=7, samples=(3,), change_due=True)])
    VoteOutcome(step=8, samples=(7,), change_due=True, passed=0)
    >>> agree([VoteClaim(step=7, digest="c0"), VoteClaim(step=8, digest="5e"), VoteClaim(step=NEW, digest="11")])
    Agreement(step=8, root=1, sources=[1], receivers=[0, 2], diverged=[], alike=[])

A rank applies a step only when it knows that all ranks have computed their part of the step. So when a generation ends,
its ranks are at most one step apart, and ranks at the higher step have identical bits; the job goes on from that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from farandole.errors import CollectiveError, MismatchError, StartError

NEW = -1
"""The step of a rank that has never had the job's state."""


@final
class Vote(NamedTuple):
    """Vote of one rank: it is at ``step`` and has reduced its gradients.

    ``samples``: numbers of samples that it computed, by data set. ``change_due``: it knows that workers will join or
    leave. ``place``: digest of the position of all ranks in the data sets and of their batches in flight. ``passed``:
    number of samples, of all ranks together, in its backward passes.
    """

    step: int
    samples: tuple[int, ...] = ()
    change_due: bool = False
    place: str = ""
    passed: int = 0


@final
class VoteOutcome(NamedTuple):
    """Result of a vote, the same on all ranks: the step that they reach by applying it, and the samples consumed.

    ``passed``: number of samples, of all ranks together, in the backward passes of a rank that skipped no pass.
    """

    step: int
    samples: tuple[int, ...]
    change_due: bool
    passed: int = 0


def count(parts: Sequence[Vote]) -> VoteOutcome:
    """Count the votes of all ranks; raises ``CollectiveError`` if they are not for the same step.

    A rank may apply the step when this returns. If the step fails on a rank, that rank does not vote, and no rank gets
    here. Raises ``MismatchError`` if ranks are at different samples: all ranks raise it, so the step counts on none.
    """
    first = parts[0]
    if any(part.step != first.step or len(part.samples) != len(first.samples) for part in parts):
        said = ", ".join(
            f"rank {rank} is at step {part.step} with {len(part.samples)} samplers" for rank, part in enumerate(parts)
        )
        raise CollectiveError(f"the ranks do not vote for the same step: {said}")
    if any(part.place != first.place for part in parts):
        said = "; ".join(f"rank {rank} has {' + '.join(map(str, part.samples))}" for rank, part in enumerate(parts))
        raise MismatchError(
            f"the ranks are not at the same samples in step {first.step}, which counts on none of them ({said} of its "
            "own in it): every rank must begin the same epoch and take the same number of batches from its loader for "
            "each step, and call record_batch() alike"
        )
    samples = tuple(sum(own) for own in zip(*(part.samples for part in parts), strict=True))
    passed = max(part.passed for part in parts)
    return VoteOutcome(first.step + 1, samples, any(part.change_due for part in parts), passed)


@final
class VoteClaim(NamedTuple):
    """Description of one rank's state when a generation begins.

    ``step``: number of steps that were voted and that it has wholly applied (``NEW``: it has no state of the job, or
    was interrupted while it applied a step). ``digest``: of its tensors. ``private``: digests of the parts that may
    differ between ranks, by name. ``joined``: it joined a job that had begun, so the job cannot begin with its state.
    """

    step: int
    digest: str
    private: tuple[tuple[str, int], ...] = ()
    joined: bool = False


def goes_on_from(step: int, joined: bool) -> int:
    """Step from which a job can go on with the state of a ``VoteClaim`` like this; ``NEW`` if it cannot.

    >>> goes_on_from(7, joined=True), goes_on_from(NEW, joined=False), goes_on_from(NEW, joined=True)
    (7, 0, -1)
    """
    return step if step > NEW or joined else 0


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """Outcome of the claims of all ranks, the same on every rank.

    The job goes on from ``step`` (``NEW``: it begins) with the state of ``root``, the oldest rank with the newest
    state. ``sources`` have that state, ``receivers`` get it. ``diverged``: receivers at the same step with other
    tensors; only a fault in memory or in the script causes this, and it is worth a warning. ``alike``: names of the
    private parts that are equal on all ranks at the same step; receivers get these parts, too.
    """

    step: int
    root: int
    sources: list[int]
    receivers: list[int]
    diverged: list[int]
    alike: list[str]


def agree(claims: Sequence[VoteClaim]) -> Agreement:
    """Choose the rank whose state the job goes on with. Raises ``StartError`` if no rank has the job's state."""
    step = max(claim.step for claim in claims)
    eligible = [rank for rank, claim in enumerate(claims) if claim.step == step and (step > NEW or not claim.joined)]
    if not eligible:
        raise StartError(
            "the state of the job is lost: every worker that had it has ended, and the present workers have just "
            "started. Start the job again: it continues from its last checkpoint"
        )
    root = eligible[0]
    sources = [rank for rank in eligible if claims[rank].digest == claims[root].digest]
    return Agreement(
        step,
        root,
        sources,
        receivers=[rank for rank in range(len(claims)) if rank not in sources],
        diverged=[rank for rank in eligible if rank not in sources] if step > NEW else [],
        alike=_alike(claims, root),
    )


def _alike(claims: Sequence[VoteClaim], root: int) -> list[str]:
    """Names of the private parts that are equal on all ranks at the same step, for every step; tensors do not matter.

    Ranks that have not begun count as being at the root's step, because ranks that have loaded a checkpoint begin
    there. Ranks that have joined a running job cannot be compared with any rank.
    """
    groups: dict[int, list[dict[str, int]]] = {}
    for claim in claims:
        if claim.step > NEW or not claim.joined:
            groups.setdefault(claim.step if claim.step > NEW else claims[root].step, []).append(dict(claim.private))
    return [
        name
        for name, _ in claims[root].private
        if all(name in group[0] and len({each.get(name) for each in group}) == 1 for group in groups.values())
    ]
