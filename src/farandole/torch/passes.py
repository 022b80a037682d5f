"""Hooks for backward passes: called for each complete gradient, and at the end of the pass.

hooks = ArrivalHooks()
hooks.add(params, arrived)
ongoing = PassEnd.queued(weakref.ref(self))             # in the first ``arrived`` of a pass
"""

# PyTorch has hooks for gradients, but none for a pass that fails. The only sign of a failure: a queued callback lives
# as long as the graph task of its pass. So only autograd owns the callback, and the watcher has a weak reference: while
# the callback is alive, the pass runs; if it is dead without a call, the pass has failed, and the next gradient begins
# a new pass. With a strong reference elsewhere, a failed pass would seem to run for ever, and the gradients of the next
# pass would count as parts of it.
#
# Callbacks and hooks run on a thread of autograd (for host memory, the caller's). Passes nest: a node of the *outer*
# pass runs the *inner* pass. An outer graph that fails and is kept (``retain_graph``) keeps the callback alive on its
# node: ``GradientReducer.zeroed`` and ``pass_ended`` handle this case.

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any, Protocol, TypeAlias, final

import torch

Arrived: TypeAlias = Callable[[torch.Tensor], object]
Arriving: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]
"""Function of a parameter and the gradient that a pass will add; returns a replacement, or ``None`` for no change."""


_is_trained = attrgetter("requires_grad")
_queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback


class _Removable(Protocol):
    def remove(self) -> None: ...


class Watcher(Protocol):
    """Watcher of backward passes."""

    def pass_ended(self) -> None:
        """Called at the end of the outermost backward pass."""


@final
class ArrivalHooks:
    """Hooks on parameters, called when a backward pass has completed a gradient.

    Frozen parameters have hooks, too: a pass must be noticed even if it completes only parameters unfrozen since.
    """

    def __init__(self) -> None:
        self._hooks: dict[int, tuple[torch.Tensor, _Removable]] = {}  # by id: hashing a tensor is slow
        self._early: dict[int, tuple[torch.Tensor, _Removable]] = {}
        self._trained: set[int] = set()
        self._last: list[torch.Tensor] = []  # parameters of the last ``add``, if all were trainable
        self._arriving: Arriving | None = None  # argument of the last ``add``

    def __len__(self) -> int:
        return len(self._hooks)

    def has_seen_trained(self, param: torch.Tensor) -> bool:
        """True if ``param`` was trainable in any call of ``add``."""
        return id(param) in self._trained

    def is_early(self, param: torch.Tensor) -> bool:
        """True if ``arriving`` is called for ``param``."""
        return id(param) in self._early

    def those_on(self, params: Sequence[torch.Tensor], arriving: Arriving | None) -> list[torch.Tensor] | None:
        """Parameters of the last ``add``, if equal to ``params`` and all trainable then and now: ``add`` is a no-op.

        Returns the same list object each time.
        """
        last = self._last
        is_same = arriving is self._arriving and len(last) == len(params) and all(map(is_, last, params))
        return last if is_same and all(map(_is_trained, last)) else None

    def add(self, params: Sequence[torch.Tensor], arrived: Arrived, arriving: Arriving | None = None) -> None:
        """Hook ``arrived``, and ``arriving`` before it, to each of ``params``, once. Both must hold weak references."""
        self._last, self._arriving = list(params) if all(map(_is_trained, params)) else [], arriving
        for param in params:
            if param.requires_grad:
                self._trained.add(id(param))
            if id(param) not in self._hooks and (hook := _hook(param, _after(param, arrived))) is not None:
                self._hooks[id(param)] = param, hook
        if arriving is None:
            return
        for param in params:
            if id(param) not in self._early and (hook := _hook(param, _before(param, arriving))) is not None:
                self._early[id(param)] = param, hook

    def remove(self) -> None:
        """Remove all hooks."""
        for _, hook in [*self._hooks.values(), *self._early.values()]:
            hook.remove()
        self._hooks, self._early, self._trained, self._last = {}, {}, set(), []


def _after(param: torch.Tensor, arrived: Arrived) -> Callable[[], _Removable]:
    return lambda: param.register_post_accumulate_grad_hook(arrived)


def _before(param: torch.Tensor, arriving: Arriving) -> Callable[[], _Removable]:
    there = weakref.ref(param)  # weak: the parameter holds the hook

    def hook(grad: torch.Tensor) -> torch.Tensor | None:
        held = there()
        return None if held is None or not _is_added_to(held) else arriving(held, grad)

    return lambda: param.register_hook(hook)


def _is_added_to(param: torch.Tensor) -> bool:
    """True in a hook of ``param`` if the pass adds to ``param.grad``; false under ``autograd.grad``."""
    try:
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(param).node)
    except RuntimeError:  # no node of the pass: an input of ``autograd.grad``, or a parameter frozen since
        return False


def _hook(param: torch.Tensor, register: Callable[[], _Removable]) -> _Removable | None:
    if param.requires_grad:
        return register()
    if param.is_inference() or not (param.is_floating_point() or param.is_complex()):
        return None  # cannot have a gradient
    param.requires_grad_(True)  # PyTorch allows hooks only then; the hook stays after the change back
    try:
        return register()
    finally:
        param.requires_grad_(False)


running_pass: Callable[[], int] = torch._C._current_graph_task_id
"""Unique number of the backward pass that runs on this thread; ``OUTSIDE`` if there is none."""

OUTSIDE = -1


def is_compiled() -> bool:
    """True in a pass of ``torch._dynamo.compiled_autograd``, which never calls callbacks for the end of the pass."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")  # importing it takes seconds
    return bool(getattr(module, "in_compiled_autograd_region", False))


no_pass: Callable[[], None] = type(None)
"""Placeholder for the reference to a ``PassEnd`` while no backward pass runs."""


@final
class PassEnd:
    """Callback for the end of a backward pass. Autograd owns it and frees it if the pass fails.

    Passes nest: reentrant checkpointing runs an inner pass for each block. At the end of an inner pass, the callback
    moves to the outer pass.
    """

    def __init__(self, watcher: Callable[[], Watcher | None]) -> None:
        self._watcher = watcher

    @staticmethod
    def queued(watcher: Callable[[], Watcher | None]) -> weakref.ref[PassEnd]:
        """Queue a callback for the running pass, and return a weak reference to the callback.

        A function of its own: a traceback of an error in the pass would keep the caller's local variables alive.
        """
        end = PassEnd(watcher)
        _queue(end)
        return weakref.ref(end)

    def __call__(self) -> None:
        node: Any = torch._C._current_autograd_node()
        watcher = self._watcher()
        if node is not None:  # the node of the outer pass that ran the inner pass, which is over
            # If queued here, the callback would run again at the end of the same inner pass: callbacks may add
            # callbacks. After the node has run, the outer pass is the innermost. The node may run again: hook it once.
            handles: list[_Removable] = []

            def after(*_: object) -> None:
                handles.pop().remove()
                _queue(self)  # for the end of the pass that is the innermost then

            handles.append(node.register_hook(after))
        elif watcher is not None:  # ``None`` if the watcher was freed during its pass
            watcher.pass_ended()
