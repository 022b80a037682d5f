"""Backward passes, as those who watch parameters see them: each gradient that is complete, and the end.

hooks = ArrivalHooks()
hooks.add(params, arrived)
ongoing = PassEnd.queued(weakref.ref(self))             # in the first ``arrived`` of a pass
"""

# PyTorch has hooks for gradients, and none for a pass that fails. The one trace is what autograd keeps alive: a queued
# callback lives as long as the task of its pass. So the callback is owned by autograd alone, and whoever watches has a
# weak reference: while it is alive, the pass runs; when it is dead without having been called, the pass has failed, and
# the next gradient begins a new one. Every strong reference elsewhere would make a failed pass look as if it ran for
# ever, and the gradients of the next would be taken for parts of it.
#
# Callbacks and hooks run on a thread of autograd (for host memory, the caller's). A pass within a pass is run by a node
# of the outer one; "inner" and "outer" below are these. An outer graph that fails and is kept (``retain_graph``) keeps
# the callback as well, on the node: ``GradientReducer.zeroed`` and ``pass_ended`` are for that.

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any, Protocol, TypeAlias, final

import torch

Arrived: TypeAlias = Callable[[torch.Tensor], object]
Arriving: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]
"""From a parameter and what a pass is about to add to its gradient to what it adds instead; ``None``: the same."""


_is_trained = attrgetter("requires_grad")
_queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback


class _Removable(Protocol):
    def remove(self) -> None: ...


class Watcher(Protocol):
    """Watcher of passes."""

    def pass_ended(self) -> None:
        """The outermost backward pass is over."""


@final
class ArrivalHooks:
    """Hooks on parameters, called when a backward pass has completed a gradient.

    Frozen parameters have one, too: a pass may complete nothing but what has been thawed since, and must not go unseen.
    """

    def __init__(self) -> None:
        self._hooks: dict[int, tuple[torch.Tensor, _Removable]] = {}  # by id: hashing a tensor is slow
        self._early: dict[int, tuple[torch.Tensor, _Removable]] = {}
        self._trained: set[int] = set()
        self._last: list[torch.Tensor] = []  # of ``add``, when all were trained
        self._arriving: Arriving | None = None  # of the same

    def __len__(self) -> int:
        return len(self._hooks)

    def has_seen_trained(self, param: torch.Tensor) -> bool:
        """True if ``param`` was not frozen in one of the calls of ``add``."""
        return id(param) in self._trained

    def is_early(self, param: torch.Tensor) -> bool:
        """True if ``arriving`` is called for ``param``."""
        return id(param) in self._early

    def those_on(self, params: Sequence[torch.Tensor], arriving: Arriving | None) -> list[torch.Tensor] | None:
        """The parameters of the last ``add`` if these are ``params``, all trained then and now: it has nothing to do.

        One and the same list each time.
        """
        last = self._last
        is_same = arriving is self._arriving and len(last) == len(params) and all(map(is_, last, params))
        return last if is_same and all(map(_is_trained, last)) else None

    def add(self, params: Sequence[torch.Tensor], arrived: Arrived, arriving: Arriving | None = None) -> None:
        """Call ``arrived``, and ``arriving`` before it; they must keep nobody alive. Once for each of ``params``."""
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
        """Take all of them away."""
        for _, hook in [*self._hooks.values(), *self._early.values()]:
            hook.remove()
        self._hooks, self._early, self._trained, self._last = {}, {}, set(), []


def _after(param: torch.Tensor, arrived: Arrived) -> Callable[[], _Removable]:
    return lambda: param.register_post_accumulate_grad_hook(arrived)


def _before(param: torch.Tensor, arriving: Arriving) -> Callable[[], _Removable]:
    there = weakref.ref(param)  # which holds the hook

    def hook(grad: torch.Tensor) -> torch.Tensor | None:
        held = there()
        return None if held is None or not _is_added_to(held) else arriving(held, grad)

    return lambda: param.register_hook(hook)


def _is_added_to(param: torch.Tensor) -> bool:
    """True in a hook of ``param`` if the pass adds to its gradient, and does not return it, as ``autograd.grad``."""
    try:
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(param).node)
    except RuntimeError:  # it is no node of the pass: ``autograd.grad`` was asked for it, or it is frozen by now
        return False


def _hook(param: torch.Tensor, register: Callable[[], _Removable]) -> _Removable | None:
    if param.requires_grad:
        return register()
    if param.is_inference() or not (param.is_floating_point() or param.is_complex()):
        return None  # has no gradient as it is
    param.requires_grad_(True)  # PyTorch hooks no other; the hook outlives the change
    try:
        return register()
    finally:
        param.requires_grad_(False)


running_pass: Callable[[], int] = torch._C._current_graph_task_id
"""Number of the backward pass that runs on this thread, which no other one has; ``OUTSIDE`` if there is none."""

OUTSIDE = -1


def is_compiled() -> bool:
    """True in a backward pass that ``torch._dynamo.compiled_autograd`` runs: callbacks for its end are never called."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")  # importing it takes seconds
    return bool(getattr(module, "in_compiled_autograd_region", False))


no_pass: Callable[[], None] = type(None)
"""Stand-in for the reference to a ``PassEnd`` while no backward pass runs."""


@final
class PassEnd:
    """Callback for the end of a backward pass. Autograd owns it: when a pass fails, it is gone.

    Passes nest, as reentrant checkpointing runs one for each block. At the end of an inner one, it is handed on to the
    pass around that.
    """

    def __init__(self, watcher: Callable[[], Watcher | None]) -> None:
        self._watcher = watcher

    @staticmethod
    def queued(watcher: Callable[[], Watcher | None]) -> weakref.ref[PassEnd]:
        """Queue a callback for the pass that runs, and return a weak reference to it.

        Here and not in the caller, whose local variables the traceback of an error in the pass would keep alive.
        """
        end = PassEnd(watcher)
        _queue(end)
        return weakref.ref(end)

    def __call__(self) -> None:
        node: Any = torch._C._current_autograd_node()
        watcher = self._watcher()
        if node is not None:  # which has run the pass that is over, and belongs to another one
            # Queued here, it would be called again at the end of the same inner pass: callbacks may add callbacks.
            # When the node has run, the innermost pass is the one around it. Its hook is for once, as it may run again.
            handles: list[_Removable] = []

            def after(*_: object) -> None:
                handles.pop().remove()
                _queue(self)  # for the end of what is the innermost pass by then

            handles.append(node.register_hook(after))
        elif watcher is not None:  # else it has gone during its pass
            watcher.pass_ended()
