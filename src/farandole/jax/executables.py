"""Cache of JAX executables across traces: a program that is traced again without a change is not compiled again.

    keep_executables()                  # from now on
    forget_traces()                     # ranks and sizes may be in programs: JAX traces all again

JAX finds a compiled program by the functions that it was traced from. After ``jax.clear_caches()`` it compiles all
programs again, which takes ten times as long as tracing, though most contain neither a rank nor the number of ranks.
This cache uses the key of JAX's own compilation cache: a hash of the whole program, its options and devices.
"""

# Threads. Any thread may compile, so ``_lock`` guards the table; if two threads compile one program at once, one
# executable is kept. A signal handler, or a finalizer called by the garbage collector, may compile while its thread
# holds the lock: hence an ``RLock``, and loops over copies made in one step. ``forget_traces`` runs at the begin of a
# session, on the thread that begins the session.
#
# Eviction. The table keeps at most ``MOST`` programs of ``MOST_BYTES`` together, constants included, because a script
# may compile new programs all the time (JAX drops them with their functions). It drops programs that were not used
# during the last ``CHANGES`` changes of the workers.
#
# Not covered by the key. Python functions: they are in ``host_callbacks``, or named by their ``id()``, which may be
# reused: ``_BY_ID``. On GPUs also the devices, because JAX's own cache loads a program for other devices.
#
# Private functions of JAX. ``compile_or_get_cached`` has had the same first five parameters since JAX 0.4.30; if that
# changes, a program is compiled as often as it is traced.

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
"""Calls in a program that name a Python function by its ``id()``: ``custom_partitioning``, and ``jax.debug``."""

_Key: TypeAlias = tuple[str, tuple[int, ...]]
"""JAX's key, and the devices."""

_FIRST = ["backend", "computation", "devices", "compile_options", "host_callbacks"]


def keep_executables() -> None:
    """Keep executables compiled from now on. Calls after the first do nothing."""
    known = getattr(compiler, "compile_or_get_cached", None)
    if known is None or isinstance(known, _Executables):
        return
    if list(inspect.signature(known).parameters)[:5] == _FIRST:
        compiler.compile_or_get_cached = _Executables(known)


def forget_traces() -> None:
    """Let JAX trace every program again, and drop executables that were not used lately.

    Called at the begin of a session, because ``hvd.size()`` and numbers of process sets are constants in programs.
    """
    jax.clear_caches()
    known = getattr(compiler, "compile_or_get_cached", None)
    if isinstance(known, _Executables):
        known.age()


@final
@dataclass(frozen=True)
class _Kept:
    """An executable, the number of worker changes before its last use, and the size of its program."""

    executable: Any
    backend: Any
    change: int
    nbytes: int


@final
class _Executables:
    """Replacement of ``compile_or_get_cached`` with a cache; ``compiles`` is JAX's own function."""

    def __init__(self, compiles: Any) -> None:
        self._compiles = compiles
        self._lock = threading.RLock()
        self._change = 0
        self._kept: dict[_Key, _Kept] = {}
        """The most recently used is last."""

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
        except Exception:  # the program cannot be serialized, or this JAX version has another function
            return compiles()
        found = self._pop(key, backend)
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

    def _pop(self, key: _Key, backend: Any) -> Any:
        """Remove and return the executable of a key; ``None`` if there is none for this backend."""
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
        """Drop executables of backends that ``clear_backends`` has ended, because these keep the backends alive."""
        live = list(map(id, xla_bridge.backends().values()))
        self._kept = {key: kept for key, kept in self._kept.copy().items() if id(kept.backend) in live}
