"""When gradients are reduced: at the end of a backward pass, or in ``step()`` where there was none.

reducer = GradientReducer(lambda: params, names, Terms(), passes_per_step=1)
loss.backward()             # its last act is the reduction
reducer.settle()            # nothing left to do
reducer.stepped()
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import is_
from typing import Any, Protocol, final

import torch

from farandole.collective import ReduceOp
from farandole.elastic.worker.ballot import Meet, alone
from farandole.errors import UsageError
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.lanes.reduction import Reduction
from farandole.runtime.session.session import Session, current
from farandole.torch.adapter import verbs
from farandole.torch.gradients import GradientExchange, Terms
from farandole.torch.lag import LaggedExchange
from farandole.torch.overlap import OverlappedPass
from farandole.torch.reducing import Closure, Reducer
from farandole.torch.riders import Passing, Rider


class _Removable(Protocol):
    def remove(self) -> None: ...


_numbers = itertools.count()
_living: weakref.WeakSet[GradientReducer] = weakref.WeakSet()


def living_reducers() -> list[GradientReducer]:
    """Those whose optimizers still exist, oldest first."""
    return sorted(_living, key=lambda reducer: reducer.number)


@final
class GradientReducer(Reducer):
    """Watches the parameters of one optimizer. ``params`` lists them, ``names`` are theirs."""

    def __init__(
        self,
        params: Callable[[], list[torch.Tensor]],
        names: Mapping[torch.Tensor, str],
        terms: Terms,
        passes_per_step: int,
    ) -> None:
        self.number = next(_numbers)
        self.label = f"optimizer.{self.number}"
        super().__init__(terms)
        self.passes_per_step = passes_per_step
        self._params, self._names = params, names
        self._held = _Held()
        self._lag = 0
        self._exchange: GradientExchange | LaggedExchange | None = None
        self._graph_task = -1
        self._passes = self._steps = self._runs = 0
        self._reduced = False
        self._overlapped: OverlappedPass | None = None
        self._rider: Rider | None = None
        self._reads: Rider | None = None  # in this pass
        weakref.finalize(self, self._held.release).atexit = False
        _living.add(self)
        if self._is_needed(current("DistributedOptimizer()")):
            self._watch()

    def settle(self) -> None:
        """Reduce what has not been reduced since the last step; a rank without a backward pass contributes zeros."""
        if not self._reduced or self._passes:
            self._reduce()

    def rejoin(self, label: str) -> None:
        """See ``Reducer``."""
        self.label = label
        self._steps = self._runs = 0
        self._graph_task, self._overlapped = -1, None
        self.restart()
        for param in self._params():
            param.grad = None
        if self._is_needed(current("the next generation")):
            self._watch()

    def stepped(self) -> None:
        """The reduced gradients have been applied."""
        if self.ballot is not None:
            self.ballot.applied()
        self._steps += 1
        self._passes = self._runs = 0
        self._reduced = False

    def zeroed(self) -> None:
        """The gradients have been zeroed: whatever comes next is new."""
        self._reduced = False

    def restart(self) -> None:
        """Forget how far an accumulation has come, and what is on its way."""
        self._passes = 0
        self._reduced = False
        if isinstance(self._exchange, LaggedExchange):
            self._exchange.forget()

    def delay(self, lag: int) -> None:
        """From now on runs hand out the gradients of ``lag`` runs ago."""
        self.restart()
        self._lag, self._exchange = lag, None
        if self._is_needed(current("GradientLag()")):
            self._watch()

    @property
    def op(self) -> ReduceOp:
        """How gradients are reduced."""
        return self._terms.how.op

    def carry(self, rider: Rider) -> None:
        """Let ``rider`` see what is reduced from now on, also where there is nobody to reduce with."""
        if self._rider is not None:
            raise UsageError("there is one already that reads the gradients of this optimizer: use that")
        self._rider = rider
        self._watch()

    def drop(self) -> None:
        """No rider sees what is reduced from now on."""
        self._rider = self._reads = None

    def wrap(self, closure: Closure) -> Closure:
        """A closure for ``Optimizer.step`` that leaves reduced gradients, and returns the loss averaged over the ranks.

        Line searches then decide alike on every rank.
        """
        votes = [self.vote]

        def evaluate() -> Any:
            self.zeroed()
            loss = closure()
            self.settle()
            mean = self._average(loss)
            if votes:  # the optimizer changes parameters from the first evaluation on
                votes.pop()()
            return mean

        return evaluate

    def serve(self) -> None:
        """Keep the other ranks company until all have joined, contributing nothing."""
        if self._is_needed(current("join()")):
            self._bind(current()).serve()
            self._steps = self._runs = 0

    def forsake(self, served: Callable[[], object]) -> None:
        """End ``serve``, for which ``served`` waits: other ranks are without this optimizer."""
        lanes, self._held.lanes = self._held.lanes, {}
        for lane in lanes.values():
            lane.abort("other ranks do not have this optimizer any more")
        if lanes:
            served()
        for lane in lanes.values():
            lane.close()

    # -- during a backward pass ---------------------------------------------------------------------------------------

    def watch_again(self) -> None:
        """There are more parameters than before."""
        if self._held.hooks:
            self._watch()

    def _watch(self) -> list[torch.Tensor]:
        """See to it that what is trained now is watched; returns that, and what was trained earlier."""
        hooks = self._held.hooks
        params = [p for p in self._params() if p.requires_grad or id(p) in hooks]
        reference = weakref.ref(self)  # a model must not keep its optimizer alive

        def arrived(param: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer._arrived(param)

        for param in params:
            if id(param) not in hooks:
                hooks[id(param)] = param, param.register_post_accumulate_grad_hook(arrived)
        return params

    def _arrived(self, param: torch.Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task != self._graph_task:  # the first gradient of this pass; one that failed half-way has left no trace
            self._graph_task = task
            self._pass_begins()
            torch.autograd.Variable._execution_engine.queue_callback(self._pass_ended)
        if self._overlapped is not None:
            if self._reads is not None:
                self._reads.read([param])
            self._overlapped.arrived(param)

    def _pass_begins(self) -> None:
        self._overlapped = self._reads = None
        if self._rider is not None and not self._reduced:
            alone = not self._is_needed(current("backward()"))
            passing = Passing(self._steps, self._passes + 1, self.passes_per_step, alone)
            self._reads = self._rider if self._rider.begins(passing) else None
        if self._exchange is None or not self._exchange.overlaps or self._passes + 1 < self.passes_per_step:
            return
        session = current("the reduction of gradients")
        if self._is_needed(session):
            exchange = self._bind(session)
            self._refuse_repetition()
            self._overlapped = exchange.begin_pass(self._where(), self._weigh)

    def _pass_ended(self) -> None:
        if self._reads is not None and self._overlapped is None:
            self._reads.read(self._params())
        if self._rider is not None:
            self._rider.ended()
        self._overlapped = self._reads = None
        self._passes += 1
        if self._passes >= self.passes_per_step:
            self._reduce()

    # -- the reduction ------------------------------------------------------------------------------------------------

    def _reduce(self) -> None:
        self._passes = 0
        if self.ballot is not None:
            self.ballot.reach("reduce")
        session = current("the reduction of gradients")
        sums = None
        if self._is_needed(session):
            exchange = self._bind(session)
            self._refuse_repetition()
            with torch.no_grad(), exchange.lane.phase(self._where(), "wait", row="training"):
                sums = exchange.run(self._where(), self._weigh, self._rider)
            self._runs += 1
        self._reduced = True
        if self._rider is not None:
            self._rider.returns(sums, self._params())

    def _is_needed(self, session: Session) -> bool:
        process_set = self._terms.process_set
        if not process_set.included():
            return False
        return self._lag > 0 or (session.topology.size > 1 and len(process_set.ranks) > 1)

    def _bind(self, session: Session) -> GradientExchange | LaggedExchange:
        """The exchange for this session and these parameters."""
        params, exchange = self._watch(), self._exchange
        if exchange is not None and exchange.lane.session is not session:
            exchange = None
        if exchange is None or len(params) != len(exchange.params) or not all(map(is_, params, exchange.params)):
            exchange = self._exchange = self._make_exchange(session, params)
        return exchange

    def _make_exchange(self, session: Session, params: list[torch.Tensor]) -> GradientExchange | LaggedExchange:
        names = [f"{self.label}.{self._names.get(p, i)}" for i, p in enumerate(params)]
        if not self._lag:
            return GradientExchange(self._lane(session), params, names, self._terms)
        lane = self._lane(session, ".lag")  # steps are voted while gradients are on their way

        def make(shadows: list[torch.Tensor]) -> GradientExchange:
            groups = {
                id(s): self._terms.groups[id(p)]
                for p, s in zip(params, shadows, strict=True)
                if id(p) in self._terms.groups
            }
            return GradientExchange(lane, shadows, names, replace(self._terms, groups=groups))

        lagged = LaggedExchange(params, self._lag, make)
        self._held.wait = lagged.forget
        return lagged

    def _meet(self) -> Meet:
        session = current("the vote of a step")
        return self._lane(session).meet if self._is_needed(session) else alone

    def _lane(self, session: Session, purpose: str = "") -> PlannedLane:
        """The lane of this session; the first time, made by all ranks."""
        lane = self._held.lanes.get(purpose)
        if lane is None or lane.session is not session:
            lane = self._held.lanes[purpose] = PlannedLane(session, self._terms.process_set, self.label + purpose)
        return lane

    def _weigh(self) -> float:
        """How much this rank counts: where it is known how many samples each has, as much as those."""
        if self.ballot is None or self._terms.how.op is not ReduceOp.AVERAGE:
            return 1.0
        return self.ballot.weigh()

    def _where(self) -> str:
        return f"step {self._steps}.{self._runs}"

    def _refuse_repetition(self) -> None:
        """Averaging what is averaged already changes nothing; any other reduction must see each gradient once."""
        exchange, idempotent = self._exchange, self._terms.how.op is ReduceOp.AVERAGE and not self._lag
        if exchange is None or not self._reduced or idempotent or not exchange.holds_any():
            return
        exchange.refuse(self._where())
        raise UsageError(
            f"gradients that op={self._terms.how.op.label} had reduced were computed again before step(): pass "
            "backward_passes_per_step=N to reduce the sum of N passes, or op=Average without GradientLag, or call "
            "zero_grad() in between"
        )

    def _average(self, loss: Any) -> Any:
        session = current()
        if not isinstance(loss, torch.Tensor | float) or not self._is_needed(session):
            return loss
        value = torch.as_tensor(loss, dtype=None if isinstance(loss, torch.Tensor) else torch.float64)
        [mean] = verbs.allreduce([value], f"{self.label}.loss", Reduction(), self._terms.process_set).run()
        return mean if isinstance(loss, torch.Tensor) else mean.item()


@final
class _Held:
    """What a reducer has outside of itself; given back when its optimizer is gone."""

    def __init__(self) -> None:
        self.hooks: dict[int, tuple[torch.Tensor, _Removable]] = {}  # by id: hashing a tensor is slow
        self.lanes: dict[str, PlannedLane] = {}  # by purpose
        self.wait: Callable[[], object] = lambda: None  # until no thread uses them

    def release(self) -> None:
        """Once."""
        for _, hook in self.hooks.values():
            hook.remove()
        self.wait()
        for lane in self.lanes.values():
            lane.close()
