"""Compression of arrays for the transfer.

    mean = hvd.allreduce(gradients, compression=hvd.Compression.bf16)

To write your own compressor, see ``farandole.runtime.collectives.compression``; here it gets whole pytrees.
"""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp

from farandole.runtime.collectives.compression import CastCompressor, NoneCompressor


class _JaxCast(CastCompressor):
    @staticmethod
    def floating_dtype(tensor: Any) -> Any:
        """See ``CastCompressor``."""
        dtype = jnp.asarray(tensor).dtype
        return dtype if jnp.issubdtype(dtype, jnp.floating) else None

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """See ``CastCompressor``."""
        return jnp.asarray(tensor).astype(dtype)

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """See ``Compressor``; the context is the list of dtypes of the pytree's leaves."""
        leaves, structure = jax.tree.flatten(tensor)
        dtypes = [cls.floating_dtype(leaf) for leaf in leaves]
        pairs = zip(leaves, dtypes, strict=True)
        small = [leaf if dtype is None else cls.cast(leaf, cls.wire_dtype) for leaf, dtype in pairs]
        return jax.tree.unflatten(structure, small), dtypes

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """See ``Compressor``."""
        leaves, structure = jax.tree.flatten(tensor)
        pairs = zip(leaves, ctx, strict=True)
        return jax.tree.unflatten(structure, [leaf if d is None else cls.cast(leaf, d) for leaf, d in pairs])


@final
class JaxHalfCompressor(_JaxCast):
    """float16: 11 bits of precision, overflows above 65504."""

    wire_dtype = jnp.float16


@final
class JaxBrainCompressor(_JaxCast):
    """bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = jnp.bfloat16


@final
class JaxCompression:
    """Farandole's compressors.

    >>> mean = hvd.allreduce(gradients, compression=hvd.Compression.bf16)
    """

    none = NoneCompressor
    fp16 = JaxHalfCompressor
    bf16 = JaxBrainCompressor
