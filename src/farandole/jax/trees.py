"""Pytrees: names of leaves, and handling of sparse arrays and unsigned integers.

paths_of([path for path, leaf in pairs])            # ["layer.w", "layer.b"]
refuse_sparse("allreduce", tree)
leaf, back = as_signed(jax.random.PRNGKey(0))       # its bits as int32, and a function that makes a key from them
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from farandole.errors import UnsupportedError


def paths_of(paths: Sequence[Any]) -> list[str]:
    """Unique names of leaves from their paths."""
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    # ``{"a": {"b": x}, "a.b": y}`` has the second name twice.
    return names if len(set(names)) == len(names) else list(map(jax.tree_util.keystr, paths))


def refuse_sparse(verb: str, tree: Any) -> None:
    """Raise ``UnsupportedError`` for sparse arrays: their leaves include indices, which cannot be added."""
    sparse = sys.modules.get("jax.experimental.sparse")  # without the import there are no sparse arrays
    if sparse is None:
        return
    for leaf in jax.tree.leaves(tree, is_leaf=lambda each: isinstance(each, sparse.JAXSparse)):
        if isinstance(leaf, sparse.JAXSparse):
            raise UnsupportedError(
                f"{verb} of a {type(leaf).__name__}, whose indices would be reduced as numbers: pass x.todense(), or "
                "gather its data and its indices, each by an allgather"
            )


def as_signed(leaf: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Bits of an array in a supported dtype, and a function that restores the dtype.

    Engines do not support unsigned integers of 32 and 64 bits, hence no PRNG keys: send their bits as signed integers.
    """
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        bits, back = as_signed(jax.random.key_data(leaf))
        kind: Any = jax.random.key_impl(leaf)
        return bits, lambda result: jax.random.wrap_key_data(back(result), impl=kind)
    signed: Any = _SIGNED.get(getattr(leaf, "dtype", None))
    if signed is None:
        return leaf, lambda result: result
    if isinstance(leaf, jax.Array):
        bitcast = jax.lax.bitcast_convert_type
        return bitcast(leaf, signed), lambda result: bitcast(result, leaf.dtype)
    return np.asarray(leaf).view(signed), lambda result: result.view(leaf.dtype)


_SIGNED = {np.dtype("uint32"): np.dtype("int32"), np.dtype("uint64"): np.dtype("int64")}
