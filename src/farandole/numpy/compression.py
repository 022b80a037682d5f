"""Compression of arrays for the transfer.

    mean = hvd.allreduce(gradient, compression=hvd.Compression.fp16)

To write your own compressor, see ``farandole.runtime.collectives.compression``.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from farandole.adapters.numpy import DTYPES, NumpyValue
from farandole.errors import UnsupportedError
from farandole.runtime.collectives.compression import CastCompressor, NoneCompressor


class _NumpyCast(CastCompressor):
    @staticmethod
    def floating_dtype(tensor: NumpyValue) -> Any:
        """See ``CastCompressor``; ``None`` for a masked array: a cast would drop the mask, but verbs must refuse it."""
        if isinstance(tensor, np.ma.MaskedArray):
            return None
        dtype = np.asarray(tensor).dtype.newbyteorder("=")
        known = DTYPES.get(dtype)
        return dtype if known is not None and known.is_floating else None

    @staticmethod
    def cast(tensor: NumpyValue, dtype: Any) -> NumpyValue:
        """See ``CastCompressor``; scalars stay scalars."""
        cast = np.asarray(tensor).astype(dtype)
        return cast if isinstance(tensor, np.ndarray) else cast[()]


@final
class HalfCompressor(_NumpyCast):
    """float16: 11 bits of precision, overflows above 65504."""

    wire_dtype = np.float16


@final
class BrainCompressor(_NumpyCast):
    """bfloat16: 8 bits of precision, the range of float32; needs the package ``ml_dtypes``."""

    wire_dtype = "bfloat16"

    @classmethod
    def compress(cls, tensor: NumpyValue) -> tuple[NumpyValue, Any]:
        """See ``Compressor``."""
        try:
            import ml_dtypes  # noqa: F401 (registers bfloat16 with NumPy)
        except ModuleNotFoundError as error:
            raise UnsupportedError(
                "Compression.bf16 needs ml_dtypes, which is not installed here: pip install ml_dtypes, "
                "or take Compression.fp16"
            ) from error
        return super().compress(tensor)


@final
class NumpyCompression:
    """Farandole's compressors.

    >>> mean = hvd.allreduce(gradient, compression=hvd.Compression.fp16)
    """

    none = NoneCompressor
    fp16 = HalfCompressor
    bf16 = BrainCompressor
