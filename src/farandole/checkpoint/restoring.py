"""Choose the newest whole checkpoint, and read it.

found = settled(Path("runs/a"), step=None)
found.step, found.shards, found.refused
state = read(Path("runs/a"), found, codec)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from farandole.checkpoint import folder
from farandole.checkpoint.codec import Codec, put_together
from farandole.checkpoint.folder import ShardFile, Unrestorable

TREE, TENSORS = "tree", "tensors"
_LOOKS = 10


@final
@dataclass(frozen=True)
class Restored:
    """A checkpoint that was whole. ``refused``: for every newer checkpoint, why it was not used."""

    step: int
    state: Any
    refused: list[str] = field(default_factory=list)


@final
@dataclass(frozen=True)
class RestorePoint:
    """The newest step whose ``shards`` have the bytes that were written (``None``: no step), and refused checkpoints.

    The folder on another host may have another checkpoint of this step, with other files than ``shards``.
    """

    step: int | None
    shards: list[ShardFile]
    refused: list[str]


def settled(root: Path, step: int | None) -> RestorePoint:
    """Choose a checkpoint, or check the one of ``step``; repeat until none is refused, or the result is the same.

    Another job may write to this folder, and remove or replace a checkpoint that was just listed: this is no reason to
    choose an older checkpoint, or none.
    """
    found: RestorePoint | None = None
    for _ in range(_LOOKS):
        before, found = found, choose(root, folder.steps(root) if step is None else [step])
        if found == before or (found.step is not None and not found.refused):
            break
    assert found is not None
    return found


def choose(root: Path, steps: Sequence[int]) -> RestorePoint:
    """Find the first of ``steps`` whose checkpoint is whole."""
    refused: list[str] = []
    for step in steps:
        writer = folder.folder_of(root, step)
        try:
            shards = folder.read_manifest(writer).shards
            for shard in shards:
                with folder.verified(writer, shard):
                    pass
        except Unrestorable as reason:
            elsewhere = "".join(f"; it is in {path.parent}" for path in folder.left_in(root, step))
            refused.append(f"{writer} is not used: {reason}{elsewhere}")
        else:
            return RestorePoint(step, shards, refused)
    return RestorePoint(None, [], refused)


def read(root: Path, point: RestorePoint, codec: Codec) -> Any:
    """Read a checkpoint; raises ``Unrestorable`` if ``root`` has other files, or files of another framework."""
    assert point.step is not None
    writer = folder.folder_of(root, point.step)
    tree: Any = None
    tensors: dict[Any, Any] = {}
    for shard in point.shards:
        with folder.verified(writer, shard) as file:
            try:
                content = codec.load(file)
                tensors.update(content[TENSORS])
            except Exception as error:  # whatever a framework raises for a file that is not its own
                raise Unrestorable(f"{shard.title} cannot be read by {type(codec).__name__}: {error}") from error
            tree = content.get(TREE, tree)
    try:
        return put_together(tree, tensors)
    except Exception as error:  # as above; also if a shard lacks a tensor that is in the tree
        raise Unrestorable(f"its values cannot be put together: {type(error).__name__}: {error}") from error
