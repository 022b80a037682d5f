"""Constants for programs under trace, from values that are known at trace time.

leaves = lifted(leaves)                             # tracers, where a program is being traced here
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core  # JAX has no public name for the trace context

from farandole.adapters.jax import is_cut
from farandole.errors import UsageError
from farandole.jax.programs import is_traced


def is_tracing() -> bool:
    """True inside a function that is being traced into a program, for any arguments."""
    trace: Any = core.trace_ctx.trace
    while trace is not None and not hasattr(trace, "frame"):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def lifted(values: Sequence[Any]) -> Sequence[Any]:
    """``values`` as constants of the program under trace, if there is one.

    A call with known values must still run in every run of the program, and not at trace time: a rank may trace alone,
    and would wait for the others. Raises ``UsageError`` for integers that JAX would cut to 32 bits.
    """
    if not values or is_traced(*values) or not is_tracing():
        return values
    constants: Sequence[Any] = jax.lax.optimization_barrier([constant(each) for each in values])
    return constants


def constant(value: Any) -> Any:
    """Known value as an array; raises ``UsageError`` like ``lifted``."""
    if is_cut(value) and value.dtype.kind in "iu":
        kept = jax.dtypes.canonicalize_dtype(value.dtype)
        if not np.array_equal(value.astype(kept), value):
            raise UsageError(
                f"an array of {value.dtype} in a program, whose numbers {kept} does not hold: set JAX_ENABLE_X64=1, or "
                "call the function outside of jit"
            )
    return jnp.asarray(value)
