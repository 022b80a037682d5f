"""Micro-averaged F1 of yes-or-no decisions, exact over any number of ranks.

    score = MicroF1()
    for images, labels in my_part_of_the_test_set:
        score.add(model(images), labels)
    score.result()                              # the same number on every rank

F1 = 2 TP / (2 TP + FP + FN), where TP, FP and FN count the decisions of all classes and samples together. Ranks add up
these counts: the mean of the ranks' F1 would be another number, as soon as one has more positives than another.
"""

from __future__ import annotations

from typing import final

import torch

import farandole.torch as hvd


@final
class MicroF1:
    """Counts true positives, false positives and false negatives of what this rank has seen."""

    def __init__(self) -> None:
        self.counts = torch.zeros(3, dtype=torch.int64)

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count the decisions of some samples, (n, classes) each: a logit above 0 says yes, one that is NaN no."""
        yes, true = logits > 0, labels > 0
        self.counts += torch.stack([(yes & true).sum(), (yes & ~true).sum(), (~yes & true).sum()])

    def result(self) -> float:
        """F1 over all ranks, which call this together; 0 where there is neither a positive nor a decision for one."""
        counts: list[int] = hvd.allreduce(self.counts, name="micro_f1", op=hvd.Sum).tolist()
        right, wrong, missed = counts
        return 2 * right / max(1, 2 * right + wrong + missed)
