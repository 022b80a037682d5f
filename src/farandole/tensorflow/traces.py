"""Graphs of every ``tf.function``, which are traced again in another session.

    forget_traces()                     # ranks and sizes may be in graphs: each function is traced again

Where a function is traced, ``hvd.size()`` is a number of Python's and stays in its graph, and so does the number of a
process set. ``size_op()`` is asked in every call, but nobody who writes ``lr * hvd.size()`` thinks of that.
"""

# TensorFlow has no list of its functions, so the garbage collector's is searched: some tens of milliseconds, once for
# each session. The class of what is looked for has no public name; without it, graphs stay as they are.

from __future__ import annotations

import contextlib
import gc

with contextlib.suppress(ImportError):  # another version of TensorFlow has it elsewhere
    from tensorflow.core.function.polymorphism import function_cache

from farandole.runtime.session.init import session_number


def forget_last_session() -> None:
    """Forget traces where a session begins and there was one before."""
    if session_number() > 1:
        forget_traces()


def forget_traces() -> None:
    """Have every ``tf.function`` traced again in its next call. Functions that are concrete stay as they are."""
    if "function_cache" in globals():
        for found in gc.get_objects():
            if type(found) is function_cache.FunctionCache:
                found.clear()
