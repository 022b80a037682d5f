"""State of an elastic job: registered values that survive while workers join, leave and fail.

    state = ObjectState(batch=0, epoch=0)

    @run
    def train(state):
        while state.epoch < 90:
            ...
            state.epoch += 1
            state.commit()

Framework modules derive states for models and optimizers, with handlers and an adapter for tensors. If the optimizers
vote on every step, tensors need no copies: they change only in voted steps, so a rank always has the tensors of its
last voted step.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from farandole.elastic.membership.vote import NEW, goes_on_from
from farandole.elastic.worker.state_parts import (
    HandlerRegistry,
    OptimizerPart,
    SamplerPart,
    StateHandler,
    StatePart,
    copied,
)
from farandole.elastic.worker.state_sync import Inventory, LocalState, Synced, synchronize
from farandole.elastic.worker.step_vote import StepVote
from farandole.errors import HostsUpdatedInterrupt, UsageError
from farandole.runtime.collectives.leaves import Leaves
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.init import current


class State(ABC):
    """State that can be saved, restored and synchronized; ``run`` calls it. The interface is Horovod's."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], object]] = []
        self._step_vote = StepVote()
        self._synced: Synced | None = None
        self._unlike: frozenset[str] = frozenset()
        self._joined = False
        """True if the job cannot begin with this worker's state: it joined later, or its state is not whole."""

    @property
    def content(self) -> str:
        """Description of the state, the same on workers that train together; "" if there is none."""
        return ""

    @property
    def _step(self) -> int:
        """The step from which the job can go on with this state; ``NEW`` if it cannot."""
        return goes_on_from(NEW, self._joined)

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Register callbacks without arguments, to be called on all remaining workers after a change of workers.

        They are called before the state is synchronized: adjust a learning rate here, and new workers get it too.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call ``reset``, then the callbacks, after a change of workers."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float = 0.0, update_res: int = 0) -> None:
        """Ask for a change of the workers: the next ``check_host_updates`` raises on every rank."""
        current().change("the script said so")

    def commit(self) -> None:
        """Save the current state, and let workers join or leave here if a change is due.

        Raises ``HostsUpdatedInterrupt`` on all ranks, or on none. Cheap if the optimizers vote: tensors are then not
        copied.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Let workers join or leave here if a change is due; all ranks call it at the same points."""
        self._step_vote.reach("commit")
        if self._is_change_due():
            self.before_change()
            raise HostsUpdatedInterrupt

    def before_change(self) -> None:  # noqa: B027 (most have nothing to prepare)
        """Prepare for a change of workers, while all ranks are still in the generation."""

    def _is_change_due(self) -> bool:
        """True on all ranks if any rank knows of a change; ranks may learn of it at different times."""
        return any(allgather_object(bool(current().change_due), "elastic.change_due"))

    @abstractmethod
    def save(self) -> None:
        """Save the current state."""

    @abstractmethod
    def restore(self) -> None:
        """Restore the state that was saved last."""

    @abstractmethod
    def sync(self) -> None:
        """Make the state the same on all ranks. Collective."""

    def reset(self) -> None:  # noqa: B027 (most states need nothing)
        """Adapt what depends on the number of workers, after a change of workers."""


class ObjectState(State):
    """Registered values as attributes: ``ObjectState(batch=0).batch``.

    These methods save values that have ``state_dict`` and ``load_state_dict``; all others are copied, and pickled for
    other ranks. After ``sync`` every rank has the values of the rank with the newest state.

    The state of a framework has ``_leaves`` for its tensors, a ``_registry`` of handlers, and its random generators.
    """

    _leaves: ClassVar[Leaves[Any]] = Leaves()
    _registry: ClassVar[HandlerRegistry] = HandlerRegistry([])

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._is_whole = False
        self._votes = False
        self._random = self._generators()
        self._parts: dict[str, StatePart] = {}
        self._handlers: dict[str, StateHandler] = {}
        self._saved: dict[str, Any] = {}
        self._saved_at = 0
        for name, value in values.items():
            self._register(name, value)
        self._connect()
        self.save()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a registered value is replaced in its handler, too."""
        held = self.__dict__
        handler = held.get("_parts", {}).get(name) or held.get("_handlers", {}).get(name)
        if handler is not None and handler.value is not value:
            handler.set_value(value)
            self._connect()
        object.__setattr__(self, name, value)

    @property
    def content(self) -> str:
        """Names of the registered values, and the tensors of values that the program has built."""
        return ", ".join(sorted([*Inventory(self._parts, self._leaves).built(), *self._handlers, *self._saved]))

    def save(self) -> None:
        """See ``State``."""
        self._await_values()  # before the first value is saved: saved values belong together
        self._saved = copied(self._objects())
        for handler in (*self._parts.values(), *self._handlers.values()):
            handler.save()
        self._saved_at = self._step_vote.step

    def restore(self) -> None:
        """See ``State``.

        If optimizers vote, tensors are as after the last voted step. Other values return to the last ``save`` if no
        step was voted since; otherwise they keep their current values, which are nearer to the last step. Random
        generators are as after the last step, or the last ``save``.
        """
        for part in self._parts.values():
            part.abandon()
        if self._saved_at == self._step_vote.step:
            for handler in (*self._parts.values(), *self._handlers.values()):
                handler.restore()
            self._set_attributes(self._registered() | copy.deepcopy(self._saved))
        for part in self._random.values():
            part.restore()

    def commit(self) -> None:
        """See ``State``. If nothing votes, a commit counts as a step."""
        self._await_values()  # a step whose values cannot be computed does not count
        if not self._votes:
            self._step_vote.step += 1
        self.save()
        if not self._votes:
            self._step_vote.recovered()
        self.check_host_updates()

    def state_dict(self) -> dict[str, Any]:
        """The whole state, for a checkpoint from which another job goes on with any number of workers. Collective.

        Its tensors are no copies, so training changes them: write or copy them before the next step. Random generators
        that ranks have seeded differently are left out, because each of them belongs to one rank.
        """
        if self._handlers:
            raise UsageError(f"no checkpoint can have {', '.join(self._handlers)}: handlers of your own keep them")
        self._await_values()
        mine = dict(Inventory(self._parts, self._leaves).private(self._unlike))
        everybody = allgather_object(mine, "elastic.private") if current("state_dict()").topology.size > 1 else [mine]
        alike = {name for name in mine if len({each.get(name) for each in everybody}) == 1}
        trees = {name: part.tree() for name, part in self._parts.items() if name in alike or not part.is_private}
        return {"step": self._step_vote.step, "trees": trees, "objects": self._objects()}

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Load the result of ``state_dict``; every rank calls it before ``run`` begins.

        Raises ``UsageError`` if this state has other registered values.
        """
        mine = {name for name, part in self._parts.items() if not part.is_private} | set(self._saved)
        theirs = {*content["trees"], *content["objects"]} - {n for n, part in self._parts.items() if part.is_private}
        if mine != theirs:
            raise UsageError(
                f"the state that was saved has {', '.join(sorted(theirs - mine)) or 'nothing'} that is not registered "
                f"here, and lacks {', '.join(sorted(mine - theirs)) or 'nothing'}: register the same values"
            )
        for name, tree in content["trees"].items():
            self._parts[name].load(tree)
        self._set_attributes(self._registered() | copy.deepcopy(dict(content["objects"])))
        self._step_vote.step, self._is_whole = content["step"], True
        self.save()

    def sync(self) -> None:
        """See ``State``; afterwards it is saved."""
        job_state = self._job_state
        self._joined = job_state.joined
        reach = partial(self._reach, job_state)
        self._synced = synchronize(self._parts, self._objects(), self._leaves, job_state, reach)
        self._unlike = self._synced.unlike
        self._is_whole = True  # not before: if the line above raises, half-received tensors are no state
        self._set_attributes(self._registered() | self._synced.objects)
        self._arrange(self._synced.step)
        for part in self._parts.values():
            part.agree()
        for handler in self._handlers.values():
            handler.sync()
        self.save()
        self._step_vote.reach("synced")

    def reset(self) -> None:
        """See ``State``: samplers distribute their samples again."""
        self._arrange(self._step_vote.step)

    def _is_change_due(self) -> bool:
        return self._step_vote.change_due if self._votes else super()._is_change_due()

    def before_change(self) -> None:
        """See ``State``: parts gather what is distributed over the ranks; some ranks may exit before ``sync``."""
        for part in self._parts.values():
            part.before_change()

    def _register(self, name: str, value: Any) -> None:
        handler = self._handler(value)
        if isinstance(handler, StatePart):
            self._parts[name] = handler
        elif handler is not None:
            self._handlers[name] = handler
        else:
            self._saved[name] = value
        object.__setattr__(self, name, value)

    def _handler(self, value: Any) -> StateHandler | None:
        """The handler of a value; ``None`` if the value must be pickled."""
        return self._registry.handler_for(value)

    def _generators(self) -> Mapping[str, StatePart]:
        """Parts that are no attributes: global random generators, and other global state."""
        return {}

    def _await_values(self) -> None:
        """Wait for values that a framework still computes; raises the error of that computation."""

    def _objects(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved}

    def _registered(self) -> dict[str, Any]:
        """The current values of the parts, which may have replaced the registered values."""
        return {name: part.value for name, part in self._parts.items() if name not in self._random}

    def _set_attributes(self, objects: dict[str, Any]) -> None:
        for name, value in objects.items():
            object.__setattr__(self, name, value)

    def _connect(self) -> None:
        """Connect the registered values with the step vote; called again when one is replaced.

        Optimizers vote if there is at least one and all of them can.
        """
        samplers = {name: part for name, part in self._parts.items() if isinstance(part, SamplerPart)}
        self._step_vote.cursors = {name: part.value.cursor for name, part in samplers.items()}
        self._parts |= self._random
        optimizers = [part for part in self._parts.values() if isinstance(part, OptimizerPart)]
        self._votes = bool(optimizers) and all(part.can_vote for part in optimizers)
        for part in self._parts.values():
            part.votes = self._votes
        if self._votes:
            self._step_vote.on_voted = self._save_random
            for voter in (part.voter for part in optimizers):
                if voter is not None:
                    voter.step_vote = self._step_vote

    def _save_random(self) -> None:
        for part in self._random.values():
            part.save()

    def _arrange(self, step: int) -> None:
        here = current().topology
        self._step_vote.rearrange(step, here.rank, here.size)
        for name, part in self._parts.items():
            part.begin_anew(name)

    @property
    def _job_state(self) -> LocalState:
        if self._is_whole and not self._step_vote.is_applying:
            return LocalState(self._step_vote.step, unlike=self._unlike)
        return LocalState(joined=self._joined or self._step_vote.is_applying)

    @property
    def _step(self) -> int:
        """See ``State``."""
        return goes_on_from(self._job_state.step, self._job_state.joined)

    def _reach(self, before: LocalState, phase: str) -> None:
        # Before the first byte is overwritten, not after: a worker that is interrupted in between must claim ``NEW``.
        if phase == "receive":
            self._is_whole, self._joined = False, True
        elif phase == "put back":
            self._joined = before.joined
        self._step_vote.reach(phase)
