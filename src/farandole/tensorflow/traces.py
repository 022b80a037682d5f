"""Removal of the traced graphs of every ``tf.function``, so that a new session traces them again.

    forget_traces()                     # ranks and sizes may be in graphs: each function is traced again

At trace time, ``hvd.size()`` is a Python number and becomes a constant of the graph, and so does the number of a
process set. ``size_op()`` is evaluated in every call, but scripts use ``lr * hvd.size()``.
"""

# TensorFlow has no list of its functions, so this module searches the garbage collector's list: some tens of
# milliseconds, once per session. The class of the searched objects is not public; without it, graphs stay unchanged.

from __future__ import annotations

import gc
import sys

_MODULE = "tensorflow.core.function.polymorphism.function_cache"


def forget_traces() -> None:
    """Let every ``tf.function`` be traced again at its next call. Concrete functions are unchanged."""
    kind = getattr(sys.modules.get(_MODULE), "FunctionCache", None)
    for found in gc.get_objects() if kind is not None else ():
        if type(found) is kind:
            found.clear()
