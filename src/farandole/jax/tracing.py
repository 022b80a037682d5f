"""Programs under trace, for calls with values that are known already: constants of these programs.

leaves = lifted(leaves)                             # tracers, where a program is being traced here
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core  # JAX has no public name for what is being traced

from farandole.adapters.jax import is_cut
from farandole.errors import UsageError
from farandole.jax.programs import is_traced


def is_tracing() -> bool:
    """True inside of a function that is being traced into a program, whatever it has been given."""
    trace: Any = core.trace_ctx.trace
    while trace is not None and not hasattr(trace, "frame"):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def lifted(values: Sequence[Any]) -> Sequence[Any]:
    """``values`` as constants of the program that is being traced here, if there is one.

    What is known before a program runs is a value like others: a call with it is due in every run, and a rank that
    traces the program alone must not wait for the others meanwhile. Raises ``UsageError`` for whole numbers that JAX
    would cut to its 32 bits.
    """
    if not values or is_traced(*values) or not is_tracing():
        return values
    constants: Sequence[Any] = jax.lax.optimization_barrier([constant(each) for each in values])
    return constants


def constant(value: Any) -> Any:
    """A value that is known before the program runs, as an array; raises ``UsageError`` as ``lifted`` does."""
    if is_cut(value) and value.dtype.kind in "iu":
        kept = jax.dtypes.canonicalize_dtype(value.dtype)
        if not np.array_equal(value.astype(kept), value):
            raise UsageError(
                f"an array of {value.dtype} in a program, whose numbers {kept} does not hold: set JAX_ENABLE_X64=1, or "
                "call the function outside of jit"
            )
    return jnp.asarray(value)
