"""Agreement of the ranks that write one checkpoint: on its step, and on the tensors that they share out.

offers = gather(WriterProposal("rank 0 on node1", mark, step, digest_of(outline)))
differing_offers(offers)                          # in words why they cannot write one checkpoint together, or ""
differing_outlines(["rank 0", "rank 1"], gather(outline))
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

Outline = Mapping[str, str]
"""Where each tensor is in the state, and its dtype and shape."""

REMEDY = "with sharded=True all ranks save the same tensors: leave out what is not the same, or save without sharded="


@final
@dataclass(frozen=True)
class WriterProposal:
    """One rank's word before anything is written: what it is about to save, or what keeps it from that (``wrong``)."""

    rank: str
    mark: str
    step: int
    digest: str
    wrong: str = ""


def digest_of(outline: Outline) -> str:
    """Digest of the outline, whatever its order."""
    return hashlib.blake2b(repr(sorted(outline.items())).encode(), digest_size=16).hexdigest()


def differing_offers(offers: Sequence[WriterProposal]) -> str:
    """Reason why these ranks do not save together: one that cannot, or another step; in words, or nothing."""
    if wrong := [f"{each.rank} cannot save: {each.wrong}" for each in offers if each.wrong]:
        return "; ".join(wrong)
    first, *others = offers
    for each in others:
        if each.step != first.step:
            return f"{each.rank} saves step {each.step}, and {first.rank} step {first.step}: all ranks save the same"
    return ""


def differing_outlines(ranks: Sequence[str], outlines: Sequence[Outline]) -> str:
    """The first tensor in which a rank differs from the first one; in words, or nothing."""
    for rank, outline in zip(ranks, outlines, strict=True):
        for path in sorted(outlines[0].keys() | outline.keys()):
            own, first = outline.get(path), outlines[0].get(path)
            if own != first:
                return f"{rank} has {own or 'no tensor'} in {path}, and {ranks[0]} {first or 'none'}: {REMEDY}"
    return ""
