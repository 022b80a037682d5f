"""Executables of JAX that outlive what was traced: a program that comes out alike again is not compiled again.

    keep_executables()                  # from now on
    forget_traces()                     # ranks and sizes may be in programs: JAX traces all again

JAX knows a compiled program by the functions that it was traced from. After ``jax.clear_caches()`` it compiles all of
them, ten times as long as it traces them, though most have no rank and no number of ranks in them. Here an executable
is known by the key of JAX's own compilation cache: a hash of the whole program, its options and devices.
"""

# Threads. Programs are compiled in any thread, so ``_lock`` guards the table; of two threads that compile one program
# at once, one executable is kept. ``forget_traces`` is called between generations, by the thread that trains.
#
# What stays. At most ``MOST`` programs, as a script may compile ever new ones, which JAX itself drops with their
# functions; and none that nobody has asked for in the last ``CHANGES`` changes of the workers, as the constants of a
# program may be large.
#
# JAX's functions. They have no public name. ``compile_or_get_cached`` has had the same first five parameters from JAX
# 0.4.30 on; should that change one day, a program is compiled as often as it is traced.

from __future__ import annotations

import inspect
import threading
from functools import partial
from typing import Any, final

import jax
from jax._src import compilation_cache, compiler

MOST = 256
CHANGES = 4

_FIRST = ["backend", "computation", "devices", "compile_options", "host_callbacks"]


def keep_executables() -> None:
    """Keep what is compiled from now on. Calls after the first do nothing."""
    known = getattr(compiler, "compile_or_get_cached", None)
    if known is None or isinstance(known, _Executables):
        return
    if list(inspect.signature(known).parameters)[:5] == _FIRST:
        compiler.compile_or_get_cached = _Executables(known)


def forget_traces() -> None:
    """Have JAX trace every program again, and drop the executables that nobody has asked for lately."""
    jax.clear_caches()
    known = getattr(compiler, "compile_or_get_cached", None)
    if isinstance(known, _Executables):
        known.age()


@final
class _Executables:
    """The function of JAX that compiles a program, with a memory; ``compiles`` is JAX's own."""

    def __init__(self, compiles: Any) -> None:
        self._compiles = compiles
        self._lock = threading.Lock()
        self._change = 0
        self._kept: dict[str, tuple[int, Any, Any]] = {}
        """By key, those asked for last at the end: the number of changes until then, the backend, the executable."""

    def __call__(
        self,
        backend: Any,
        computation: Any,
        devices: Any,
        compile_options: Any,
        host_callbacks: Any,
        *others: Any,
        **named: Any,
    ) -> Any:
        compiles = partial(
            self._compiles, backend, computation, devices, compile_options, host_callbacks, *others, **named
        )
        if host_callbacks:  # functions of Python, which the key does not tell apart
            return compiles()
        try:
            key = compilation_cache.get_cache_key(computation, devices, compile_options, backend)
        except Exception:  # the program cannot be written down, or this version of JAX has another function
            return compiles()
        with self._lock:
            _, owner, found = self._kept.pop(key, (0, None, None))
        if owner is not backend:  # none, or of one that ``clear_backends`` has ended
            found = compiles()
        with self._lock:
            self._kept[key] = self._change, backend, found
            if len(self._kept) > MOST:
                del self._kept[next(iter(self._kept))]
        return found

    def age(self) -> None:
        """Count a change of the workers."""
        with self._lock:
            self._change += 1
            oldest = self._change - CHANGES
            self._kept = {key: kept for key, kept in self._kept.items() if kept[0] >= oldest}
