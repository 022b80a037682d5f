"""Calls out of compiled programs of JAX: the native target, and names that are the same on all ranks.

    [mean] = call(Spec("allreduce", name).encode(), [x], [jax.ShapeDtypeStruct(x.shape, x.dtype)])

Order. XLA runs what does not depend on each other in any order, so calls meet by name alone. A program may be
dispatched again before its first run is over, and then the same name is due twice. These two are never mixed up, as
XLA's client for CPUs begins no run before all those are over that the same thread has dispatched earlier, cheap ones
not excepted: calls of one name come in the order in which the script has dispatched them, on every rank.
(``tests/frameworks/jax`` holds it to that.) Programs of several threads do overtake each other, as eager calls of
several threads do: there names must differ. An eager call would overtake them as well, and waits first where its name
stands in a program. Programs on two devices run beside each other, so one name is for one device (``graphs/calls``).

What is called. A primitive of our own, and not JAX's ``ffi_call``: its side effect would cost every run of the program
0.15 ms, as JAX dispatches programs with effects in Python. Nothing but the effect keeps JAX from dropping a call whose
result one rank does not use while the others wait for it. So the effect stands in what is traced and compiled, and only
the list of effects that a compiled program is dispatched with is without it.

Names. JAX keeps what it has traced: a function that is traced on this rank may be known on another one, or be traced
again for other shapes. So a name follows from the place of the call in the script, and from how many calls from there
the function under trace has made before, not from a counter of the process. A name that stands in one program twice, as
that of a function that is jitted and called twice there, is refused when the program runs.

What calls use. A script may drop an optimizer while programs with its calls are still to run, as a function does that
returns weights without waiting for them. What these calls use is kept until this rank waits for its programs.

Threads. Functions are traced in any thread. ``_lock`` guards ``_libraries``, and with it the one registration of the
target, which XLA refuses a second time; ``_register`` is over when it appends, so who finds the list empty waits. A
counter in ``_calls`` belongs to one trace, and that to one thread; the table itself changes by single operations on a
``dict`` only, and an entry goes when its trace is collected. So does ``_kept``, which the garbage collector adds to on
any thread; a wait takes out what was there when it began. What programs call when they run: ``graphs/calls``.
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

_TARGET = "farandole"
_NUMBERS = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 15: "complex64", 18: "complex128",
}  # fmt: skip
"""XLA's numbers of dtypes; 16 is bfloat16, which NumPy gets from JAX."""

_libraries: list[Library] = []
_lock = threading.Lock()  # guards the one above
_calls: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = weakref.WeakKeyDictionary()
"""Calls that a function under trace has made so far, by place or name; one thread traces it."""

_kept: dict[int, Any] = {}
"""What programs may still call for owners that are gone, by the order in which these went."""

_order_of_going = itertools.count()

_standing: set[tuple[str, str]] = set()
"""Verbs and names that scripts have given to calls in programs."""

_OURS, _JAXS = (str(Path(module.__file__ or "").parent) for module in (farandole, jax))


def is_traced(*values: Any) -> bool:
    """True if one of the values is known only when a program runs, or is being differentiated or mapped."""
    return any(isinstance(value, jax.core.Tracer) for value in values)


def is_mapped(*values: Any) -> bool:
    """True if one of the values is a batch, of which ``vmap`` shows the function one part."""
    return any("BatchTrace" in map(_kind, _traces(value)) for value in values)


def call(spec: str, inputs: Sequence[Any], results: Sequence[Any], elementwise: bool = False) -> list[Any]:
    """Call what ``spec`` says; ``elementwise`` collectives may reduce a batch of ``vmap`` as one array."""
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
    """Parameters of a call: what it says, the shapes and dtypes of its results, and the inputs that become these."""

    spec: str
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    same: tuple[int, ...]
    elementwise: bool


@final
class _CollectiveEffect(effects.Effect):
    """Effect of a call on the other ranks, who wait for it."""

    def __repr__(self) -> str:
        """Words in errors of JAX, as of ``jax.checkpoint``, which would make the call a second time."""
        return "a collective of farandole"


_EFFECT = _CollectiveEffect()
_call_p = Primitive("farandole_call")
_call_p.multiple_results = True


def _abstract_eval(*_: Any, params: _Params) -> tuple[Any, Any]:
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in params.results], {_EFFECT}


def _dispatched_with(found: Iterable[effects.Effect]) -> list[effects.Effect]:
    """Effects by which JAX dispatches a compiled program; it asks ``ordered_effects`` which are not among these.

    Should JAX ask otherwise one day, programs have our effect, too, and cost what that does.
    """
    unordered = type(effects.ordered_effects).filter_not_in(effects.ordered_effects, found)
    return [effect for effect in unordered if effect is not _EFFECT]


def _lower(context: Any, *inputs: Any, params: _Params) -> Any:
    axes = context.module_context.axis_context  # of jit, or of shard_map, which has a mesh
    devices: Any = getattr(axes, "num_devices", None) or getattr(getattr(axes, "mesh", None), "size", 1)
    if devices > 1:
        raise UsageError(f"a collective of farandole {ON_SEVERAL_DEVICES}")
    aliases = {i: i for i in params.same}
    lowering = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True, operand_output_aliases=aliases)
    return lowering(context, *inputs, spec=params.spec)


def _batch(inputs: Sequence[Any], axes: Sequence[Any], *, params: _Params) -> tuple[Any, Any]:
    """Make one call of a batch of them."""
    if not params.elementwise:  # of a backward pass, as of ``jax.jacrev``: others are refused where they are called
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


def _run(*inputs: Any, params: _Params) -> Any:
    """Run the call as a program of its own, where a user has switched programs off, too."""
    with jax.disable_jit(False):
        return _program_of(params)(*inputs)


_call_p.def_effectful_abstract_eval(_abstract_eval)
_call_p.def_impl(_run)
mlir.register_lowering(_call_p, _lower)
batching.primitive_batchers[_call_p] = _batch
for allowed in ("lowerable", "control_flow_allowed", "custom_derivatives_allowed"):
    getattr(effects, f"{allowed}_effects").add_type(_CollectiveEffect)
effects.ordered_effects.filter_not_in = _dispatched_with  # type: ignore[assignment, method-assign]


def place() -> str:
    """The place of a call in the script: the functions between it and JAX, which may be tracing them, with lines.

    Where JAX was called from is none of it: what has been traced there is used again elsewhere.
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
    """The name of a call with these values, one of its own in the function under trace; ``None`` if there is none."""
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
    """Wait for programs of this thread if a call of this ``name`` stands in some: an eager one could overtake it."""
    if name is not None and (verb, name) in _standing:
        await_programs()


def numbered(verb: str, name: str, values: Sequence[Any]) -> str:
    """The name of a call of a backward pass, of which a program may have several: one for each derivative."""
    program = next((found for found in map(_program, values) if found is not None), None)
    if program is None:
        return name
    counts = _calls.setdefault(program, collections.Counter())
    count, counts[name] = counts[name], counts[name] + 1
    name = f"{name}.{count}" if count else name
    forget(verb, name)
    return name


def _program(value: Any) -> Any:
    """The innermost function that is being traced into a program, as JAX keeps it; ``None`` if there is none."""
    return next((trace for trace in _traces(value) if hasattr(trace, "frame")), None)


def _traces(value: Any) -> Iterator[Any]:
    """The transformations that a value is under, from the innermost to the function that is being traced."""
    trace = getattr(value, "_trace", None) if isinstance(value, jax.core.Tracer) else None
    while trace is not None:
        yield trace
        trace = None if hasattr(trace, "frame") else getattr(trace, "parent_trace", None)


def _kind(trace: object) -> str:
    return type(trace).__name__


def _register() -> None:
    with _lock:  # XLA refuses a target that two threads register, and functions are traced in several
        if _libraries:
            return
        dtypes = {number: np.dtype(name) for number, name in _NUMBERS.items()}
        library = Library("graph_xla", {**dtypes, 16: np.dtype(jax.numpy.bfloat16)})
        take_calls(library)
        target = jax.ffi.pycapsule(library.native.farandole_xla_call)
        # Before the target: a program that is dispatched must be waited for, whenever the script ends.
        settle_before_leaving(await_programs)
        jax.ffi.register_ffi_target(_TARGET, target, platform="cpu")
        _libraries.append(library)


def keep_for_programs(what: Any) -> None:
    """Keep ``what`` until programs that were dispatched before are over: a finalizer may call this, on any thread."""
    _kept[next(_order_of_going)] = what


def release_kept() -> None:
    """Wait for programs of this thread if something is kept for them, and let go of it."""
    if _kept:
        await_programs()


def await_programs() -> None:
    """Wait for programs that this thread has dispatched and that have not ended: their calls need this rank."""
    kept = list(_kept)
    with contextlib.suppress(Exception):  # what they have ended with is told where their results are used
        jax.effects_barrier()  # those with effects of others
    for device in jax.local_devices(backend="cpu"):
        with contextlib.suppress(Exception), jax.default_device(device):
            jax.block_until_ready(jax.jit(lambda: jnp.zeros(()))())  # it runs after all that went to this device
    for order in kept:
        _kept.pop(order, None)
