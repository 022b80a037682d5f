"""Agreement of the ranks that write one checkpoint: on its step, and on the tensors that they distribute.

offers = gather(WriterProposal("rank 0 on node1", mark, step, digest_of(outline)))
differing_offers(offers)                          # text on why they cannot write one checkpoint together, or ""
differing_outlines(["rank 0", "rank 1"], gather(outline))
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

Outline = Mapping[str, str]
"""Path of each tensor in the state, and its dtype and shape."""

REMEDY = "with sharded=True all ranks save the same tensors: leave out what is not the same, or save without sharded="


@final
@dataclass(frozen=True)
class WriterProposal:
    """Proposal of one rank before anything is written: what it will save, or why it cannot save (``wrong``)."""

    rank: str
    mark: str
    step: int
    digest: str
    wrong: str = ""


def digest_of(outline: Outline) -> str:
    """Digest of the outline, independent of its order."""
    return hashlib.blake2b(repr(sorted(outline.items())).encode(), digest_size=16).hexdigest()


def differing_offers(offers: Sequence[WriterProposal]) -> str:
    """Text on why these ranks cannot save together: a rank that cannot save, or different steps; "" if they can."""
    if wrong := [f"{each.rank} cannot save: {each.wrong}" for each in offers if each.wrong]:
        return "; ".join(wrong)
    first, *others = offers
    for each in others:
        if each.step != first.step:
            return f"{each.rank} saves step {each.step}, and {first.rank} step {first.step}: all ranks save the same"
    return ""


def differing_outlines(ranks: Sequence[str], outlines: Sequence[Outline]) -> str:
    """Text on the first tensor in which a rank differs from the first rank; "" if there is none."""
    for rank, outline in zip(ranks, outlines, strict=True):
        for path in sorted(outlines[0].keys() | outline.keys()):
            own, first = outline.get(path), outlines[0].get(path)
            if own != first:
                return f"{rank} has {own or 'no tensor'} in {path}, and {ranks[0]} {first or 'none'}: {REMEDY}"
    return ""
