"""Batches of several ranks: the same at any number of them, and whose fault a wait is."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from farandole.data.loading.batches import Batches
from farandole.data.loading.report import report
from farandole.data.storage.waits import during
from farandole.testing.rank import RankContext
from tests.support.data.batch_samples import STEPS, Images, plain
from workbench.jobs import run_job


def global_batches(_: RankContext) -> list[Any]:
    import farandole.numpy as hvd

    hvd.init()
    batches = Batches(Images(), global_batch_size=12, seed=3, augment=STEPS, threads=2)
    found = [{name: np.asarray(column).tolist() for name, column in batch.items()} for batch in batches]
    share = report()
    hvd.shutdown()
    assert share.steps == 4
    return found


def test_global_batches_are_the_same_at_any_number_of_ranks() -> None:
    """Also the augmented images; the last step has 5 samples, and a rank of three none of its own past them."""
    whole = [plain(batch) for batch in Batches(Images(), 12, seed=3, augment=STEPS, threads=1)]
    for size in (2, 3):
        ranks = run_job(global_batches, size)
        for step, batch in enumerate(whole):
            for name in ("image", "label", "name"):
                joined = [row for rank in ranks for row in rank[step][name]]
                assert joined == (batch[name] if name == "name" else batch[name][1])


class Slow(Images):
    """Images that come late, out of the storage or as they are decoded."""

    def __init__(self, category: str) -> None:
        super().__init__(24)
        self.category = category

    def __getitem__(self, index: int) -> Any:
        with during(self.category):
            threading.Event().wait(0.05)
        return super().__getitem__(index)


def blamed(member: RankContext, category: str, slow: int, fake: bool) -> Any:
    import farandole.numpy as hvd

    hvd.init()
    dataset = Slow(category) if member.rank == slow else Images(24)
    for batch in Batches(dataset, global_batch_size=4, threads=1, fake=fake):
        hvd.allreduce(batch["image"].sum(axis=0))
    found = report()
    hvd.shutdown()
    return found


def test_ranks_agree_on_who_is_late_and_why() -> None:
    for category, slow in (("shared storage", 0), ("peer", 1)):
        one, other = run_job(blamed, 2, category, slow, False)
        assert one == other
        assert (one.steps, one.blamed[0].rank, one.blamed[0].cause) == (5, slow, category)
        assert one.share > 0.5
        assert f"waits for rank {slow} on " in str(one)
    fake, _ = run_job(blamed, 2, "peer", 1, True)
    assert fake.exposed_s == 0.0
