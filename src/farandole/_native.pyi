"""The native core: kernels on plain addresses. ``dtype`` and ``op`` are the numbers of ``collective``'s enums.

All functions raise ``ValueError`` for a dtype or reduction they do not serve; large ones release the GIL.
"""

def copy(dst: int, src: int, nbytes: int) -> None:
    """Copy ``nbytes`` bytes; the two places may overlap."""

def fill(address: int, count: int, dtype: int, value: float) -> None:
    """Set every element to ``value``; integers saturate."""

def fill_identity(address: int, count: int, dtype: int, op: int) -> None:
    """Set every element to what changes nothing in a reduction by ``op``."""

def scale(address: int, count: int, dtype: int, factor: float) -> None:
    """Multiply in place; integers in float64, truncating; bool is left alone."""

def divide(address: int, count: int, dtype: int, n: int) -> None:
    """Divide in place; integers truncate toward zero; bool is left alone."""

def reduce_into(dst: int, src: int, count: int, dtype: int, op: int) -> None:
    """``dst[i] = dst[i] op src[i]``; AVERAGE sums (bool: *and*), without dividing."""

def reduce(
    sources: list[int], dst: int, count: int, dtype: int, op: int,
    prescale: float = 1.0, postscale: float = 1.0, divisor: int = 1,
) -> None:  # fmt: skip
    """``dst[i] = postscale * ((prescale * s0[i] op prescale * s1[i] op ...) / divisor)``, in the order of ``sources``.

    ``dst`` is one of the sources or apart from all of them. float16 and bfloat16 are rounded once, at the end.
    """

def adasum_dots(a: int, b: int, count: int, dtype: int) -> tuple[float, float, float]:
    """``(a·a, a·b, b·b)`` in float64, for the four real floating types."""

def adasum_combine(a: int, b: int, out: int, count: int, dtype: int, ca: float, cb: float) -> None:
    """``out[i] = ca * a[i] + cb * b[i]``, computed in float64 and rounded once; ``out`` may be ``a`` or ``b``."""
