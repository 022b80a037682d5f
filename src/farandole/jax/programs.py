"""Calls in compiled JAX programs: the native target, and names that are the same on all ranks.

    [mean] = call(Spec("allreduce", name).encode(), [x], [jax.ShapeDtypeStruct(x.shape, x.dtype)])

Order. XLA runs independent operations in any order, so ranks match calls by name alone. A program may be dispatched
again before its first run has ended, so that two calls of one name are due. They are never mixed up: XLA's client for
CPUs begins a run only after all earlier runs of the same thread have ended, even cheap ones. So calls of one name run
in the order in which the script dispatched them, on every rank (tested in ``tests/frameworks/jax``). Programs of
several threads do overtake each other, like eager calls of several threads: they need different names. An eager call
would overtake programs, too; so it first waits for the programs if its name is in one. Programs on two devices run
concurrently, so each name is for one device (``graphs/calls``).

Primitive. Calls use a primitive of Farandole and not JAX's ``ffi_call``, whose side effect would cost 0.15 ms in every
run, because JAX dispatches programs with effects in Python. But only the effect keeps JAX from dropping a call whose
result is not used on one rank, while other ranks wait for it. So the effect is in the traced and compiled program, and
only the list of effects used for the dispatch omits it.

Names. JAX caches traces: a function that is traced on this rank may be cached on another rank, or be traced again for
other shapes. So a name consists of the place of the call in the script and the number of earlier calls from there in
the function under trace, and not of a process-wide counter. A name that is in one program twice (a jitted function that
is called twice there) is refused when the program runs.

Lifetime. A script may drop an optimizer while programs with its calls have yet to run: a function may return weights
without waiting for them. The objects of these calls are kept until this rank waits for its programs.

Threads. Any thread may trace functions. ``_lock`` guards ``_libraries`` and the registration of the target, which XLA
refuses a second time; ``_register`` appends at its end, so a thread that finds the list empty waits. A counter in
``_calls`` belongs to one trace, and a trace to one thread; the table itself changes only by single ``dict`` operations,
and an entry is dropped when its trace is collected. The same holds for ``_kept``, to which the garbage collector adds
on any thread; a wait removes the entries that existed when it began. For running programs see ``graphs/calls``.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import itertools
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import effects  # JAX has no public name for these
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

import farandole
from farandole.errors import UnsupportedError, UsageError
from farandole.graphs.calls import ON_SEVERAL_DEVICES, forget, take_calls
from farandole.graphs.library import Library
from farandole.runtime.session.init import settle_before_leaving

_TARGET, _PLATFORM = "farandole", "cpu"
_NUMBERS = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 15: "complex64", 18: "complex128",
}  # fmt: skip
"""XLA's numbers of dtypes; 16 is bfloat16, whose NumPy dtype comes from JAX."""

_libraries: list[Library] = []
_lock = threading.Lock()  # guards ``_libraries``
_calls: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = weakref.WeakKeyDictionary()
"""Number of calls so far in each function under trace, by place or name; one thread traces a function."""

_kept: dict[int, Any] = {}
"""Objects of freed owners that programs may still call, by a running number."""

_order_of_going = itertools.count()

_standing: set[tuple[str, str]] = set()
"""Verbs and user-given names of calls in programs."""

_OURS, _JAXS = (str(Path(module.__file__ or "").parent) for module in (farandole, jax))


def is_traced(*values: Any) -> bool:
    """True if one of the values is a tracer: known only at run time, or being differentiated or mapped."""
    return any(isinstance(value, jax.core.Tracer) for value in values)


def is_mapped(*values: Any) -> bool:
    """True if ``vmap`` maps over one of the values."""
    return any("BatchTrace" in map(_kind, _traces(value)) for value in values)


def call(spec: str, inputs: Sequence[Any], results: Sequence[Any], elementwise: bool = False) -> list[Any]:
    """Call the operation of ``spec``; ``elementwise`` collectives may reduce a batch of ``vmap`` as one array."""
    _register()
    same = [
        i for i, (x, r) in enumerate(zip(inputs, results, strict=False)) if (x.shape, x.dtype) == (r.shape, r.dtype)
    ]
    shapes = tuple((tuple(result.shape), np.dtype(result.dtype)) for result in results)
    params = _Params(spec, shapes, tuple(same), elementwise)
    return list(_call_p.bind(*inputs, params=params))


@final
@dataclass(frozen=True)
class _Params:
    """Parameters of a call: its spec, shapes and dtypes of results, and indices of results that alias inputs."""

    spec: str
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    same: tuple[int, ...]
    elementwise: bool


@final
class _CollectiveEffect(effects.Effect):
    """Effect of a call on the other ranks, which wait for it."""

    def __repr__(self) -> str:
        """Text in JAX's errors, for example of ``jax.checkpoint``, which would repeat the call."""
        return "a collective of farandole"


_EFFECT = _CollectiveEffect()
_call_p = Primitive("farandole_call")
_call_p.multiple_results = True


def _abstract_eval(*_: Any, params: _Params) -> tuple[Any, Any]:
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in params.results], {_EFFECT}


def _dispatched_with(found: Iterable[effects.Effect]) -> list[effects.Effect]:
    """Effects with which JAX dispatches a compiled program; replaces ``ordered_effects.filter_not_in``.

    If a later JAX does not call that method, programs keep Farandole's effect, and its cost.
    """
    unordered = type(effects.ordered_effects).filter_not_in(effects.ordered_effects, found)
    return [effect for effect in unordered if effect is not _EFFECT]


def _refuse_platform(context: Any, *_: Any, params: _Params) -> Any:  # noqa: ARG001
    platforms = " and ".join(each for each in context.module_context.platforms if each != _PLATFORM)
    raise UnsupportedError(
        f"a collective of farandole in a program for {platforms}, from which it cannot be called: jit what comes "
        "before it and what comes after it, and call it between the two (hvd.allreduce, or hvd.DistributedGradients "
        "on the gradients that a jitted function returns), where arrays of any device are reduced by way of host memory"
    )


def _lower(context: Any, *inputs: Any, params: _Params) -> Any:
    axes = context.module_context.axis_context  # of jit, or of shard_map (with a mesh)
    devices: Any = getattr(axes, "num_devices", None) or getattr(getattr(axes, "mesh", None), "size", 1)
    if devices > 1:
        raise UsageError(f"a collective of farandole {ON_SEVERAL_DEVICES}")
    aliases = {i: i for i in params.same}
    lowering = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True, operand_output_aliases=aliases)
    return lowering(context, *inputs, spec=params.spec)


def _batch(inputs: Sequence[Any], axes: Sequence[Any], *, params: _Params) -> tuple[Any, Any]:
    """Replace a batch of calls by one call."""
    if not params.elementwise:  # in a backward pass (``jax.jacrev``): ``run_collective`` refuses all others
        raise UnsupportedError(
            "vmap of a collective whose result is not made element by element, as jax.jacrev does with that of a "
            "gradient, or of an optimizer's update: call it outside of the mapped function, on the whole batch"
        )
    size = next(x.shape[axis] for x, axis in zip(inputs, axes, strict=True) if axis is not None)
    whole = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(inputs, axes, strict=True)
    ]
    params = replace(params, results=tuple(((size, *shape), dtype) for shape, dtype in params.results))
    results = _call_p.bind(*whole, params=params)
    return results, [0] * len(results)


@functools.lru_cache(1024)
def _program_of(params: _Params) -> Any:
    return jax.jit(lambda *inputs: _call_p.bind(*inputs, params=params))


def _run_program(*inputs: Any, params: _Params) -> Any:
    """Run the call as a separate program, even if the user has disabled ``jit``."""
    with jax.disable_jit(False):
        return _program_of(params)(*inputs)


_call_p.def_effectful_abstract_eval(_abstract_eval)
_call_p.def_impl(_run_program)
mlir.register_lowering(_call_p, _refuse_platform)
mlir.register_lowering(_call_p, _lower, platform=_PLATFORM)
batching.primitive_batchers[_call_p] = _batch
for allowed in ("lowerable", "control_flow_allowed", "custom_derivatives_allowed"):
    getattr(effects, f"{allowed}_effects").add_type(_CollectiveEffect)
effects.ordered_effects.filter_not_in = _dispatched_with  # type: ignore[assignment, method-assign]


def place() -> str:
    """Place of a call in the script: functions and lines from the call up to JAX's frames, which may be tracing them.

    The frames that called JAX are excluded, because JAX reuses a trace from other places.
    """
    frame, lines, innermost = sys._getframe(1), [], ""
    while frame is not None and not frame.f_code.co_filename.startswith(_JAXS):
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            lines.append(f"{Path(code.co_filename).name}:{code.co_name}:{frame.f_lineno}")
            innermost = innermost or code.co_name
        frame = frame.f_back  # type: ignore[assignment]
    return f"{innermost}.{hashlib.blake2b(repr(lines).encode(errors='replace'), digest_size=4).hexdigest()}"


def named(verb: str, name: str | None, where: str, values: Sequence[Any]) -> str | None:
    """Name of a call with these values, unique in the function under trace; outside of a trace, ``name`` itself."""
    program = next((found for found in map(_program, values) if found is not None), None)
    if program is None:
        return name
    counts = _calls.setdefault(program, collections.Counter())
    key = f"{verb}.{where if name is None else name}" if name is None else f"{verb}:{name}"
    count, counts[key] = counts[key], counts[key] + 1
    if name is None:
        name, count = f"traced.{where}.{count}", 0
    else:
        _standing.add((verb, name))
    forget(verb, name)
    if count:
        raise UsageError(
            f"{verb} {name!r} stands twice in one function under trace, and ranks could pair the one with the other: "
            "pass another name= to each, or none"
        )
    return name


def await_runs(verb: str, name: str | None) -> None:
    """Wait for this thread's programs if one has a call of this ``name``, which an eager call could overtake."""
    if name is not None and (verb, name) in _standing:
        await_programs()


def numbered(verb: str, name: str, values: Sequence[Any]) -> str:
    """Name of a call of a backward pass, with a number, because a program may have several derivatives."""
    program = next((found for found in map(_program, values) if found is not None), None)
    if program is None:
        return name
    counts = _calls.setdefault(program, collections.Counter())
    count, counts[name] = counts[name], counts[name] + 1
    name = f"{name}.{count}" if count else name
    forget(verb, name)
    return name


def _program(value: Any) -> Any:
    """JAX's object for the innermost function that is being traced into a program; ``None`` if there is none."""
    return next((trace for trace in _traces(value) if hasattr(trace, "frame")), None)


def _traces(value: Any) -> Iterator[Any]:
    """Transformations of a value, from the innermost to the function that is being traced."""
    trace = getattr(value, "_trace", None) if isinstance(value, jax.core.Tracer) else None
    while trace is not None:
        yield trace
        trace = None if hasattr(trace, "frame") else getattr(trace, "parent_trace", None)


def _kind(trace: object) -> str:
    return type(trace).__name__


def _register() -> None:
    with _lock:  # several threads may trace, and XLA refuses a second registration
        if _libraries:
            return
        dtypes = {number: np.dtype(name) for number, name in _NUMBERS.items()}
        library = Library("graph_xla", {**dtypes, 16: np.dtype(jax.numpy.bfloat16)})
        take_calls(library)
        target = jax.ffi.pycapsule(library.native.farandole_xla_call)
        # Before the target is registered: a dispatched program must be waited for, whenever the script ends.
        settle_before_leaving(await_programs)
        jax.ffi.register_ffi_target(_TARGET, target, platform=_PLATFORM)
        _libraries.append(library)


def keep_for_programs(what: Any) -> None:
    """Keep ``what`` until the programs dispatched so far have ended. A finalizer may call this on any thread."""
    _kept[next(_order_of_going)] = what


def release_kept() -> None:
    """Wait for programs of this thread if objects are kept for them, and release the objects."""
    if _kept:
        await_programs()


def await_programs() -> None:
    """Wait for the unfinished programs of this thread, because other ranks need this rank in their calls."""
    kept = list(_kept)
    with contextlib.suppress(Exception):  # errors are raised when the results are used
        jax.effects_barrier()  # programs with other effects
    devices = []
    with contextlib.suppress(RuntimeError):  # ``JAX_PLATFORMS=cuda``: there is no such device, and no such program
        devices = jax.local_devices(backend=_PLATFORM)
    for device in devices:
        with contextlib.suppress(Exception), jax.default_device(device):
            jax.block_until_ready(jax.jit(lambda: jnp.zeros(()))())  # runs after all earlier programs of this device
    for order in kept:
        _kept.pop(order, None)
