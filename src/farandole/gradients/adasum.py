"""Adasum of weight changes over the ranks, compressed for the transfer.

    changes = [after - before for ...]
    combined = combine_changes(verbs, changes, "adasum.weight", ReductionOptions())

For optimizers where every rank steps with its own gradients and the ranks then combine the weight changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from farandole.collective import ReduceOp, Reduction
from farandole.gradients.reduction_options import ReductionOptions
from farandole.runtime.collectives.compression import NoneCompressor
from farandole.runtime.collectives.verbs import Verbs

T = TypeVar("T")


def combine_changes(verbs: Verbs[T], changes: Sequence[T], name: str, terms: ReductionOptions) -> list[T]:
    """Combine ``changes``, which may be overwritten. Collective over the process set of ``terms``."""
    compression = terms.compression or NoneCompressor
    compressed = [compression.compress(change) for change in changes]
    how, process_set = Reduction(ReduceOp.ADASUM), terms.process_set
    combined = verbs.allreduce([small for small, _ in compressed], name, how, process_set, in_place=True).run()
    return [compression.decompress(each, context) for each, (_, context) in zip(combined, compressed, strict=True)]
