"""Graphs of every ``tf.function``, which are traced again in another session.

    forget_traces()                     # ranks and sizes may be in graphs: each function is traced again

Where a function is traced, ``hvd.size()`` is a number of Python's and stays in its graph, and so does the number of a
process set. ``size_op()`` is asked in every call, but nobody who writes ``lr * hvd.size()`` thinks of that.
"""

# TensorFlow has no list of its functions, so the garbage collector's is searched: some tens of milliseconds, once for
# each session. The class of what is looked for has no public name; without it, graphs stay as they are.

from __future__ import annotations

import gc
import sys

_MODULE = "tensorflow.core.function.polymorphism.function_cache"


def forget_traces() -> None:
    """Have every ``tf.function`` traced again in its next call. Functions that are concrete stay as they are."""
    kind = getattr(sys.modules.get(_MODULE), "FunctionCache", None)
    for found in gc.get_objects() if kind is not None else ():
        if type(found) is kind:
            found.clear()
