"""Choice of the newest checkpoint that is whole, and reading it.

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
    """A checkpoint that was whole. ``refused`` says of every newer one why it was not taken."""

    step: int
    state: Any
    refused: list[str] = field(default_factory=list)


@final
@dataclass(frozen=True)
class RestorePoint:
    """The newest step whose ``shards`` have the bytes that were written, and what was refused; ``None``: there is none.

    A folder of another host may have another checkpoint of this step: its files are not those of ``shards``.
    """

    step: int | None
    shards: list[ShardFile]
    refused: list[str]


def settled(root: Path, step: int | None) -> RestorePoint:
    """Choose from what there is, or ``step``: until nothing is refused, or the same is refused twice in a row.

    Another job may write to this folder, and remove or replace what has just been listed: that is no reason to take an
    older one, or to find none and begin anew.
    """
    found: RestorePoint | None = None
    for _ in range(_LOOKS):
        before, found = found, choose(root, folder.steps(root) if step is None else [step])
        if found == before or (found.step is not None and not found.refused):
            break
    assert found is not None
    return found


def choose(root: Path, steps: Sequence[int]) -> RestorePoint:
    """Look through ``steps``, in their order, for one that is whole."""
    refused: list[str] = []
    for step in steps:
        writer = folder.writer_of(root, step)
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
    """Read what was saved; raises ``Unrestorable`` if ``root`` has not the very same, or not of this framework."""
    assert point.step is not None
    writer = folder.writer_of(root, point.step)
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
    except Exception as error:  # as above; also where a shard lacks a tensor that another one's tree has
        raise Unrestorable(f"its values cannot be put together: {type(error).__name__}: {error}") from error
