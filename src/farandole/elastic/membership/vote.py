"""The vote of a step, and the agreement on one state after ranks saw different ends of a vote; pure.

    >>> count([Vote(step=7, samples=(4,)), Vote(step=7, samples=(3,), change_due=True)])
    VoteOutcome(step=8, samples=(7,), change_due=True, passed=0)
    >>> agree([Claim(step=7, digest="c0"), Claim(step=8, digest="5e"), Claim(step=NEW, digest="11")])
    Agreement(step=8, root=1, sources=[1], receivers=[0, 2], diverged=[], alike=[])

A rank applies a step only when it has seen that all ranks have their part of it. So when a generation ends, its ranks
are at most one step apart, and those that are further have the same bits; the highest step is the job's.
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
    """One rank's part in the vote of a step: it is at ``step`` and has reduced its gradients.

    ``samples`` are those it computed, by data set; ``change_due``: it has heard that workers are to come or go.
    ``place`` is a digest of where all ranks are in the data sets, and of what they have been given there. ``passed`` is
    the number of samples, of all ranks together, that its backward passes were over.
    """

    step: int
    samples: tuple[int, ...] = ()
    change_due: bool = False
    place: str = ""
    passed: int = 0


@final
class VoteOutcome(NamedTuple):
    """Result of a vote, the same on all ranks: the step that they reach by applying it, and what it has consumed.

    ``passed``: the samples, of all ranks together, that the passes were over of a rank that has left out none of them.
    """

    step: int
    samples: tuple[int, ...]
    change_due: bool
    passed: int = 0


def count(parts: Sequence[Vote]) -> VoteOutcome:
    """Count the parts of all ranks; raises ``CollectiveError`` if they are not those of one step.

    A rank that returns from here may apply the step. If one's step has failed it brings no part, and none returns.
    Raises ``MismatchError`` if ranks are not at the same samples: it is here that all see it, so it counts on none.
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

    ``step`` counts the steps that it has seen voted and has wholly applied (``NEW``: it has no state of the job, or
    was in the middle of applying one). ``digest`` is of its tensors, ``private`` of what ranks may differ in, by name.
    ``joined`` says that it came to a job that had begun: it cannot be the one to begin it.
    """

    step: int
    digest: str
    private: tuple[tuple[str, int], ...] = ()
    joined: bool = False


def goes_on_from(step: int, joined: bool) -> int:
    """The step from which a job goes on with a state of such a ``VoteClaim``; ``NEW`` if it cannot.

    >>> goes_on_from(7, joined=True), goes_on_from(NEW, joined=False), goes_on_from(NEW, joined=True)
    (7, 0, -1)
    """
    return step if step > NEW or joined else 0


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """Outcome of the claims of all ranks, the same on every rank.

    The job goes on from ``step`` (``NEW``: it begins) with the state of ``root``, its oldest rank with the newest
    state. ``sources`` have that state, ``receivers`` get it. ``diverged`` are those of them that were at the same step
    with other tensors: nothing makes such states but a fault in memory or in the script, which is worth a warning.
    ``alike`` are the private things that no two ranks at one point differ in; receivers get them too.
    """

    step: int
    root: int
    sources: list[int]
    receivers: list[int]
    diverged: list[int]
    alike: list[str]


def agree(claims: Sequence[VoteClaim]) -> Agreement:
    """Choose the rank whose state is the job's. Raises ``StartError`` if no rank is left that has it."""
    step = max(claim.step for claim in claims)
    eligible = [rank for rank, claim in enumerate(claims) if claim.step == step and (step > NEW or not claim.joined)]
    if not eligible:
        raise StartError(
            "the state of the job is lost: every worker that had it has ended, and those that are here have just come. "
            "Start the job again; what goes on then is its last checkpoint"
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
    """Names of the private things in which all ranks at one step agree, at whatever step; tensors say nothing of it.

    Ranks that have yet to begin are where the root is, as those that have loaded a checkpoint begin there. Those that
    have joined a job can be compared with nobody.
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
