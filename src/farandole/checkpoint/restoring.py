"""Choice of the newest checkpoint that is whole, and reading it.

found = choose(Path("runs/a"), steps(Path("runs/a")))
found.step, found.refused
state = read(Path("runs/a"), found.step, codec)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from farandole.checkpoint import folder
from farandole.checkpoint.codec import Codec, put_together
from farandole.checkpoint.folder import Manifest, Unrestorable

TREE, TENSORS = "tree", "tensors"


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
    """The newest step whose files have the bytes that were written (``None``: there is none), and what was refused."""

    step: int | None
    refused: list[str]


def choose(root: Path, steps: Sequence[int]) -> RestorePoint:
    """Look through ``steps``, in their order, for one that is whole."""
    refused: list[str] = []
    for step in steps:
        writer = folder.writer_of(root, step)
        try:
            _verified(writer)
        except Unrestorable as reason:
            refused.append(f"{writer} is not used: {reason}")
        else:
            return RestorePoint(step, refused)
    return RestorePoint(None, refused)


def read(root: Path, step: int, codec: Codec) -> Any:
    """Read what was saved; raises ``Unrestorable`` if it is not whole, or not of this framework."""
    writer = folder.writer_of(root, step)
    manifest = folder.read_manifest(writer)
    tree: Any = None
    tensors: dict[int, Any] = {}
    for shard in manifest.shards:
        try:
            with (writer / shard.name).open("rb") as file:
                content = codec.load(file)
            tensors.update(content[TENSORS])
            tree = content.get(TREE, tree)
        except Exception as error:  # whatever a framework raises for a file that is not its own
            raise Unrestorable(f"{shard.title} cannot be read by {type(codec).__name__}: {error}") from error
    try:
        return put_together(tree, tensors)
    except Exception as error:  # as above; also where a shard lacks a tensor that another one's tree has
        raise Unrestorable(f"its values cannot be put together: {type(error).__name__}: {error}") from error


def _verified(writer: Path) -> Manifest:
    manifest = folder.read_manifest(writer)
    for shard in manifest.shards:
        folder.verify(writer, shard)
    return manifest
