"""Executables of JAX that outlive what was traced: a program that comes out alike again is not compiled again.

    keep_executables()                  # from now on
    forget_traces()                     # ranks and sizes may be in programs: JAX traces all again

JAX knows a compiled program by the functions that it was traced from. After ``jax.clear_caches()`` it compiles all of
them, ten times as long as it traces them, though most have no rank and no number of ranks in them. Here an executable
is known by the key of JAX's own compilation cache: a hash of the whole program, its options and devices.
"""

# Threads. Programs are compiled in any thread, so ``_lock`` guards the table; of two threads that compile one program
# at once, one executable is kept. A signal handler, or a finalizer that the garbage collector calls, may compile on top
# of a thread that has the lock: hence an ``RLock``, and loops over copies that are made in one step. ``forget_traces``
# is called where a session begins, by the thread that has called for it.
#
# What stays. At most ``MOST`` programs of ``MOST_BYTES``, constants included, as a script may compile ever new ones,
# which JAX itself drops with their functions; and none that nobody has asked for in the last ``CHANGES`` changes of the
# workers.
#
# What the key does not tell. Functions of Python, which come as ``host_callbacks``, or by their ``id()``, which the
# next one may have again: ``_BY_ID``. And on GPUs the devices, as JAX's own cache loads a program for others.
#
# JAX's functions. They have no public name. ``compile_or_get_cached`` has had the same first five parameters from JAX
# 0.4.30 on; should that change one day, a program is compiled as often as it is traced.

from __future__ import annotations

import inspect
import io
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final

import jax
from jax._src import compilation_cache, compiler, xla_bridge

MOST, MOST_BYTES = 256, 2**26
CHANGES = 4

_BY_ID = (b"CustomSPMDPartitioning", b"InspectSharding")
"""Calls in a program that name a function of Python by its ``id()``: ``custom_partitioning``, and ``jax.debug``."""

_Key: TypeAlias = tuple[str, tuple[int, ...]]
"""JAX's key, and the devices."""

_FIRST = ["backend", "computation", "devices", "compile_options", "host_callbacks"]


def keep_executables() -> None:
    """Keep what is compiled from now on. Calls after the first do nothing."""
    known = getattr(compiler, "compile_or_get_cached", None)
    if known is None or isinstance(known, _Executables):
        return
    if list(inspect.signature(known).parameters)[:5] == _FIRST:
        compiler.compile_or_get_cached = _Executables(known)


def forget_traces() -> None:
    """Have JAX trace every program again, and drop the executables that nobody has asked for lately.

    Called where a session begins: ``hvd.size()`` of the last is a number in a program, and so is a process set's.
    """
    jax.clear_caches()
    known = getattr(compiler, "compile_or_get_cached", None)
    if isinstance(known, _Executables):
        known.age()


@final
@dataclass(frozen=True)
class _Kept:
    """An executable, the number of changes until it was asked for last, and the size of its program."""

    executable: Any
    backend: Any
    change: int
    nbytes: int


@final
class _Executables:
    """The function of JAX that compiles a program, with a memory; ``compiles`` is JAX's own."""

    def __init__(self, compiles: Any) -> None:
        self._compiles = compiles
        self._lock = threading.RLock()
        self._change = 0
        self._kept: dict[_Key, _Kept] = {}
        """Those asked for last at the end."""

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
        if host_callbacks:
            return compiles()
        try:
            program = io.BytesIO()
            computation.operation.write_bytecode(file=program)
            text = program.getvalue()
            if len(text) > MOST_BYTES or any(name in text for name in _BY_ID):
                return compiles()
            name = compilation_cache.get_cache_key(computation, devices, compile_options, backend)
            key = name, tuple(device.id for device in devices.flat)
        except Exception:  # the program cannot be written down, or this version of JAX has another function
            return compiles()
        found = self._take(key, backend)
        if found is None:
            found = compiles()
        self._keep(key, _Kept(found, backend, self._change, len(text)))
        return found

    def age(self) -> None:
        """Count a change of the workers."""
        with self._lock:
            self._change += 1
            oldest = self._change - CHANGES
            self._kept = {key: kept for key, kept in self._kept.copy().items() if kept.change >= oldest}

    def _take(self, key: _Key, backend: Any) -> Any:
        """The executable of that key, out of the table; ``None`` if there is none of this backend."""
        with self._lock:
            kept = self._kept.pop(key, None)
            return kept.executable if kept is not None and kept.backend is backend else None

    def _keep(self, key: _Key, kept: _Kept) -> None:
        with self._lock:
            if all(each.backend is not kept.backend for each in self._kept.copy().values()):
                self._drop_ended()
            self._kept[key] = kept
            table = self._kept.copy()
            nbytes = sum(each.nbytes for each in table.values())
            for oldest, each in table.items():
                if len(self._kept) <= MOST and nbytes <= MOST_BYTES:
                    return
                self._kept.pop(oldest, None)
                nbytes -= each.nbytes

    def _drop_ended(self) -> None:
        """Drop what is of backends that ``clear_backends`` has ended: they live as long as their executables."""
        live = list(map(id, xla_bridge.backends().values()))
        self._kept = {key: kept for key, kept in self._kept.copy().items() if id(kept.backend) in live}
