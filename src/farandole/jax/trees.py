"""Pytrees: names of their leaves, and what is none of numbers to be combined.

paths_of([path for path, leaf in pairs])            # ["layer.w", "layer.b"]
refuse_sparse("allreduce", tree)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax

from farandole.errors import UnsupportedError


def paths_of(paths: Sequence[Any]) -> list[str]:
    """Names of leaves by their paths, no two of which are the same."""
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    # ``{"a": {"b": x}, "a.b": y}`` has the second name twice.
    return names if len(set(names)) == len(names) else list(map(jax.tree_util.keystr, paths))


def refuse_sparse(verb: str, tree: Any) -> None:
    """Raise ``UnsupportedError`` for sparse arrays: their leaves are values, and indices, which cannot be added."""
    sparse = sys.modules.get("jax.experimental.sparse")  # where there are none, it need not be imported
    if sparse is None:
        return
    for leaf in jax.tree.leaves(tree, is_leaf=lambda each: isinstance(each, sparse.JAXSparse)):
        if isinstance(leaf, sparse.JAXSparse):
            raise UnsupportedError(
                f"{verb} of a {type(leaf).__name__}, whose indices would be reduced as numbers: pass x.todense(), or "
                "gather its data and its indices, each by an allgather"
            )
