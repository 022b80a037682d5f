"""Applications under ``kill -9`` and a change of the number of workers: each sample counts once."""

from __future__ import annotations

from pathlib import Path

from tests.support.examples.killed import trained_with_a_kill


def test_bigearthnet_counts_each_patch_once(tmp_path: Path) -> None:
    arguments = ["--patches", "2048", "--epochs", "4", "--warmup-epochs", "1", "--workers", "4"]
    history = trained_with_a_kill("examples.bigearthnet.train", arguments, tmp_path)
    assert history.problems(2048, 4) == []
    assert {len(batch) for batch in history.batches()} == {32}
    assert {record.size for records in history.begun.values() for record in records} >= {1, 2}
