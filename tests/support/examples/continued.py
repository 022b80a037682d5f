"""A training of an example that a second job continues, at another size and from a stage.

continues("examples.jets.train", ["--data", str(data)], tmp_path, says="loss", ends="accuracy 0.")
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.frameworks import without_compiler
from tests.support.launching import run_to_end

STAGED = ("--stage", "cache", "--limit", "1GB")


def continues(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    *,
    says: str,
    ends: str,
    first: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Train one epoch on two workers, then another one on one worker, from a checkpoint and a stage.

    ``says``: word of the line of an epoch; ``ends``: words of the last line; ``first``: further arguments of the first
    job.
    """
    run = [sys.executable, "-m", "farandole", "run", "-np"]
    train = [sys.executable, "-m", module, *arguments, "--checkpoints", "kept", "--epochs"]
    found = {**without_compiler(), **(environment or {})}
    one = run_to_end([*run, "2", *train, "1", *first], folder, 200.0, found).ok().stdout
    other = run_to_end([*run, "1", *train, "2", *STAGED], folder, 200.0, found).ok().stdout
    assert f"1/1 {says}" in one
    assert f"1/2 {says}" not in other
    assert f"2/2 {says}" in other
    assert ends in other
    assert any((folder / "cache").iterdir())
