"""Reduction of one optimizer's gradients at the end of a backward pass, or in ``step()`` if there was no pass.

    reducer = ListReducer(tensors, params, key, ReductionOptions())
    means = reducer.reduce(gradients)           # frameworks that pass gradients as a list and get a list back
    reducer.vote()
    reducer.stepped()

Frameworks whose gradients appear one by one (PyTorch) have a subclass with hooks, which calls ``begin_pass``,
``completed`` and ``end_pass``.
"""

# Threads. ``completed`` and ``end_pass`` may run on a thread of the framework: for host memory on the thread that calls
# ``backward()``, for a device on another thread, while the script waits in ``backward()``. So fields need no lock, as
# long as the parameters of one optimizer are on one device. Work in parallel to the script has its own threads and
# fields: the buckets of an ``OverlappedPass``, the runs of a ``LaggedExchange``. During ``join()`` the script only
# waits, and a thread in ``serve`` owns this object, except for ``label`` and ``forsake``.
#
# References. Only the optimizer holds its reducer (and ``join()``, while it runs). Parameters hold hooks, and a model
# outlives its optimizers; ``_living``, ``SharedParameters`` and ``weakref.finalize`` exist as long as the process. Each
# of these refers to the reducer weakly or not at all, and ``params`` refers weakly to the optimizer. So an optimizer
# that a script drops is freed at that line, which is the same on every rank. An optimizer in a reference cycle is freed
# when a rank's garbage collector runs, and until then ranks disagree about which optimizers exist. (Schedulers and
# elastic states make cycles: see ``shared_parameters`` and ``join``.) The traceback of an error keeps the optimizer or
# its reducer alive only on ranks that waited in this file, and a notebook keeps the last traceback. So a reducer whose
# parameters a newer reducer takes over *rests*, without hooks, until its optimizer is used again.
#
# Order. All ranks use a lane in the same order, so a rank that raises must first call ``refuse``: this is its part of
# the meeting that the other ranks are in or will enter, and then all ranks raise.

from __future__ import annotations

import itertools
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import is_
from typing import Any

from farandole import events
from farandole.collective import ReduceOp
from farandole.elastic.worker.step_vote import Meet, alone
from farandole.errors import UsageError
from farandole.gradients.exchange import GradientExchange
from farandole.gradients.lag import LaggedExchange
from farandole.gradients.observers import Observer, Passing
from farandole.gradients.optimizer_key import OptimizerKey
from farandole.gradients.overlap import OverlappedPass
from farandole.gradients.parameters import Parameters
from farandole.gradients.reducer import Reducer
from farandole.gradients.reducer_lanes import ReducerLanes
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.shared_parameters import SharedParameters, superseded
from farandole.gradients.snapshots import KeptGradients
from farandole.gradients.tensors import Param, T, Tensors
from farandole.runtime.collectives.divergence import StepDigests
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.lanes.weak_objects import WeakObjects
from farandole.runtime.session.init import Session, current, end_step, forget_in_sessions
from farandole.runtime.session.process_sets import require_registered
from farandole.runtime.session.training import training

_numbers = itertools.count()
_living: WeakObjects[GradientReducer[Any]] = WeakObjects()


def living_reducers() -> list[GradientReducer[Any]]:
    """Reducers whose optimizers still exist, oldest first."""
    return sorted(_living.living(), key=lambda reducer: reducer.number)


@cache
def _forget_accumulations_in_sessions() -> None:
    def forget() -> None:
        for reducer in living_reducers():
            reducer.begin_session()

    forget_in_sessions(forget)


def _at_work() -> list[GradientReducer[Any]]:
    return [each for each in living_reducers() if not each._rests]


def _let_older_rest(newer: GradientReducer[Any], session: Session) -> None:
    # A function of its own: the traceback of an error in the constructor would keep the last one alive.
    for older in superseded(newer, _at_work(), lambda each: each._identity.is_of_past(session)):
        older._rest()


def _is_living(label: str) -> bool:
    """True if an optimizer of this process has the ``label``."""
    return any(label == reducer.label for reducer in living_reducers())


class GradientReducer(Reducer[T]):
    """Reducer of the gradients of one optimizer, whose parameters ``params`` lists.

    A subclass selects the parameters (``_watch``) and wraps them for its framework (``_bound``). ``unhook`` is called
    when the optimizer is freed or the reducer rests, and must not refer to the reducer.
    """

    def __init__(
        self,
        tensors: Tensors[T],
        params: Callable[[], list[Param]],
        identity: OptimizerKey,
        terms: ReductionOptions,
        passes_per_step: int,
        unhook: Callable[[], object] = lambda: None,
    ) -> None:
        self.number = next(_numbers)
        super().__init__(terms, tensors)
        self.passes_per_step = passes_per_step
        self.params, self._identity = params, identity
        self._lanes = ReducerLanes(unhook)
        self._lag = 0
        self._exchange: GradientExchange[T] | LaggedExchange[T] | None = None
        self._passes = self._steps = self._runs = 0
        self._reduced = False
        self._overlapped: OverlappedPass[T] | None = None
        self._observer: Observer | None = None
        self._reads: Observer | None = None  # in this pass
        self._bound_to: list[Param] | None = None  # result of ``_watch`` when the exchange was made or last checked
        self._kept = KeptGradients(tensors)
        self._rests = False  # true while another reducer has its parameters
        _living.add(self)
        _forget_accumulations_in_sessions()
        self._siblings = SharedParameters(self, _at_work)  # after ``_living.add``: it makes others search again
        # Not at exit: shutdown() ends the lanes, and ``release`` would wait without a timeout for dead ranks.
        weakref.finalize(self, self._lanes.release).atexit = False
        session = current("DistributedOptimizer()")
        _let_older_rest(self, session)
        if self._is_needed(session):
            self._watch()

    def _rest(self) -> None:
        """Do without hooks until the optimizer is used again, because a newer reducer has its parameters."""
        self._rests, self._reduced = True, False
        self._lanes.unhook()
        SharedParameters.changed()

    def _take_part(self) -> list[Param]:
        """Wake this reducer up if it rests, because its optimizer is used; then ``_watch``."""
        if self._rests:
            self._rests = False
            SharedParameters.changed()
        return self._watch()

    @abstractmethod
    def _watch(self) -> list[Param]:
        """Watch all parameters, including new ones; return those whose gradients are reduced.

        Returning the same list object again means that it holds the same parameters as before.
        """

    @abstractmethod
    def _bound(self, params: Sequence[Param], groups: Sequence[int]) -> Parameters[T]:
        """``Parameters`` of a new exchange; ``groups``: the number of each parameter's group."""

    def settle(self) -> None:
        """Reduce gradients not reduced since the last step; a rank without a backward pass contributes zeros."""
        if self._reduced and not self._passes and not self._may_be_new():
            return
        session = current("step()")
        if self._is_needed(session):
            self._bind(session).refuse_failed_pass(self._where())
        if self.step_vote is not None:  # the samples of this pass, which other ranks had, before the next pass
            self._passed.add(self.step_vote)
        self._reduce()

    def _may_be_new(self) -> bool:
        """True if gradients may have changed since the last reduction without a pass that the hooks saw."""
        return False

    def rejoin(self, label: str) -> None:
        """See ``Reducer``."""
        self._identity.rename(label)
        self._steps = self._runs = 0
        self._overlapped = None
        self._forget_snapshots()
        self._drop_gradients()  # after a fault, some may be reduced and others not
        if self.step_vote is not None or self._is_needed(current("the next generation")):
            self._take_part()  # also on a single rank, to count the samples of passes

    def begin_session(self) -> None:
        """Begin a session: drop an accumulation of the previous session, which the new ranks do not share."""
        if self._passes:
            self._drop_gradients()

    def _drop_gradients(self) -> None:
        self.restart()
        for param in self.params():
            self._tensors.set_gradient(param, None)

    def stepped(self) -> None:
        """See ``Reducer``."""
        if self.step_vote is not None:
            self.step_vote.applied()
            self._passed.restart()
        self._steps += 1
        self._passes = self._runs = 0
        self._reduced = False
        end_step(self._terms.process_set, None if self.step_vote is None else self.step_vote.step)
        if isinstance(self._exchange, GradientExchange):  # a lag meets on its threads, at another step on each rank
            self._exchange.lane.stop_if_interrupted()

    def zeroed(self) -> None:
        """See ``Reducer``."""
        self._reduced = False

    def restart(self) -> None:
        """Forget the progress of an accumulation, and pending runs of a lag."""
        self._passes, self._reduced = 0, False
        self._passed.restart()
        if isinstance(self._exchange, LaggedExchange):
            self._exchange.forget()

    def delay(self, lag: int) -> None:
        """Let runs return the gradients of ``lag`` runs ago from now on."""
        self.restart()
        self._lag, self._exchange = lag, None
        if self._is_needed(current("GradientLag()")):
            self._take_part()

    @property
    def label(self) -> str:
        """Label of the lanes, the same on all ranks."""
        return self._identity.label

    @property
    def op(self) -> ReduceOp:
        """Operation of the reduction."""
        return self._terms.how.op

    def carry(self, observer: Observer) -> None:
        """Attach ``observer``, which reads all gradients from now on, also on a single rank."""
        if self._observer is not None:
            raise UsageError("there is one already that reads the gradients of this optimizer: use that")
        self._observer = observer
        self._take_part()

    def drop(self) -> None:
        """Detach the observer."""
        self._observer = self._reads = None

    def serve(self) -> int:
        """Contribute zeros to the other ranks' reductions until all have joined; return the number of reductions."""
        if not self._is_needed(current("join()")):
            return 0
        served = self._bind(current()).serve()
        self._steps = self._runs = 0
        self._forget_snapshots()
        return served

    def forsake(self, served: Callable[[], object]) -> None:
        """End ``serve``, because other ranks do not have this optimizer; ``served`` waits for its thread."""
        # The thread in ``serve`` either waits in a pairing, without a lane, or it waits in its lane.
        self._identity.withdraw(current("join()"))
        self._lanes.abort("other ranks do not have this optimizer any more", served)

    def is_forsakable(self, session: Session) -> bool:
        """True if ``forsake`` can end ``serve``: the first use of a lane waits for all ranks and cannot be aborted."""
        return self._lanes.are_open(session) or not self._is_needed(session)

    # -- during a backward pass ---------------------------------------------------------------------------------------

    def watch_again(self) -> None:
        """See ``Reducer``."""
        self._siblings.changed()

    def begin_pass(self) -> None:
        """Called when a backward pass begins, before its first gradient is complete."""
        self._overlapped = self._reads = None
        if self.step_vote is not None:
            self._passed.add(self.step_vote)
        # In every pass: an unreachable optimizer must be freed before the pairing, and before its hooks end the pass.
        is_shared = bool(self._siblings.find())
        if self._observer is not None and not self._reduced:
            alone = not self._is_needed(current("backward()"))
            passing = Passing(self._steps, self._passes + 1, self.passes_per_step, alone)
            self._reads = self._observer if self._observer.begins(passing) else None
        if self._exchange is None or not self._exchange.overlaps or self._passes + 1 < self.passes_per_step:
            return
        if is_shared:  # one reducer's thread would write gradients while the other's thread reads them
            return
        session = current("the reduction of gradients")
        if self._is_needed(session):
            exchange = self._bind(session)
            if self._reduced:
                self._refuse_repetition()
            self._kept.begin()  # before the pass, whose thread writes gradients from the next line on
            self._overlapped = exchange.begin_pass(self._where(), self._weigh)

    def completed(self, param: Param) -> None:
        """Called when the gradient of ``param`` is complete, during a pass."""
        if self._overlapped is not None:
            if self._reads is not None:  # before ``arrived``: then another thread may reduce the gradient in place
                self._reads.read([param])
            self._overlapped.arrived(param)

    def end_pass(self) -> None:
        """Called at the end of the pass."""
        if self._reads is not None and self._overlapped is None:
            self._reads.read(self.params())
        if self._observer is not None:
            self._observer.ended()
        self._overlapped = self._reads = None
        self._passes += 1
        if self._passes >= self.passes_per_step:
            self._reduce()

    # -- the reduction ------------------------------------------------------------------------------------------------

    def _reduce(self) -> None:
        self._passes = 0  # first, because the rest may raise: the next pass begins a new accumulation
        if self.step_vote is not None:
            self.step_vote.reach("reduce")
        session = current("the reduction of gradients")
        sums = None
        if self._is_needed(session):
            exchange = self._bind(session)
            if self._reduced:
                self._refuse_repetition()
            if siblings := self._siblings.find():
                self._refuse_siblings(siblings)
            if not self._kept.begun:
                self._kept.begin()
            where, begin_s = self._where(), time.monotonic()
            with self._tensors.untracked():
                sums = exchange.reduce_gradients(where, self._weigh, self._observer, self._uncompared())
            training.waited(time.monotonic() - begin_s)
            if events.subscribers:
                exchange.lane.phase(where, "wait", begin_s, row="training")
            self._kept.end(self._named)
            self._runs += 1
        else:
            require_registered(self._terms.process_set, "the reduction of gradients")
        self._reduced = True
        if self._observer is not None:
            self._observer.returns(sums, self.params())

    def _is_needed(self, session: Session) -> bool:
        process_set = self._terms.process_set
        if not process_set.included():
            return False
        return self._lag > 0 or (len(process_set.ranks) > 1 and len(session.topology.hosts) > 1)

    def _bind(self, session: Session) -> GradientExchange[T] | LaggedExchange[T]:
        """Exchange for this session and the current parameters."""
        if not self._identity.is_settled(session):
            self._pair(session)  # first: it may wait for threads of other ranks, and fixes the order of parameters
        watched, exchange = self._take_part(), self._exchange
        if exchange is not None and exchange.lane.session is not session:
            exchange = None
        if exchange is not None and watched is self._bound_to:  # the usual case
            return exchange
        params = self._identity.arrange(watched)
        # Not ``params != exchange.params``: lists compare tensors by ``==``, which compares their elements.
        if exchange is None or len(params) != len(exchange.params) or not all(map(is_, params, exchange.params)):
            if isinstance(self._exchange, LaggedExchange):
                self._exchange.forget()  # its threads use the lane of the new exchange
            exchange = self._exchange = self._make_exchange(session, params)
        self._bound_to = watched
        return exchange

    def _make_exchange(self, session: Session, params: list[Param]) -> GradientExchange[T] | LaggedExchange[T]:
        names = [f"{self.label}.{self._identity.name(p, i)}" for i, p in enumerate(params)]
        parameters = self._bound(params, self._terms.group_numbers(params))
        if not self._lag:
            return GradientExchange(self.lane(session), parameters, names, self._terms)
        lane = self.lane(session, ".lag")  # steps are voted while gradients are on their way
        terms = self._terms  # a local, because the exchange must not refer to ``self``

        def make(shadows: Parameters[T]) -> GradientExchange[T]:
            return GradientExchange(lane, shadows, names, terms)

        lagged = LaggedExchange(parameters, self._lag, make)
        self._lanes.wait = lagged.forget  # not a method of this reducer, which ``_lanes`` would keep alive
        return lagged

    def named(self) -> list[tuple[str, Param]]:
        """Names and parameters, in the agreed order."""
        return [(self._identity.name(p, i), p) for i, p in enumerate(self._identity.arrange(self.params()))]

    def _named(self) -> list[tuple[str, Param]]:
        return self.named() if self._is_needed(current("step()")) and self._exchange is not None else []

    def _meeting(self, snapshot: StepDigests | None) -> Meet:
        session = current("the vote of a step")
        return partial(self.lane(session).meet, snapshot=snapshot) if self._is_needed(session) else alone

    def lane(self, session: Session, purpose: str = "") -> PlannedLane:
        """Lane of this session; the first call makes it, collectively."""
        if (lane := self._lanes.find(session, purpose)) is None:
            if not self._identity.is_settled(session):
                self._pair(session)
            lane = self._lanes.open(session, purpose, self._terms.process_set, self.label)
        return lane

    def _pair(self, session: Session) -> None:
        """Pair with the other ranks' reducers. Collective, once in each session."""
        self._bound_to = None  # the order of the parameters may change
        self._identity.settle(session, self.params(), _is_living)
        if not session.is_interactive:  # in a notebook models outlive a failed cell, and unequal steps are an error
            self._steps = 0  # members of a new session may have counted in different earlier sessions
        self._runs = 0
        self._forget_snapshots()

    def _weigh(self) -> float:
        """Weight of this rank's gradients: in an average by its samples if these are known, in a sum 0 without any."""
        if self.step_vote is None or self.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            return 1.0
        weight = self.step_vote.weigh()
        return weight if self.op is ReduceOp.AVERAGE else float(weight > 0.0)

    def _where(self) -> str:
        return f"step {self._steps}.{self._runs}"

    def _refuse_repetition(self) -> None:
        """Refuse to reduce gradients twice, unless ``op`` is Average, which does not change averaged gradients."""
        exchange, idempotent = self._exchange, self._terms.how.op is ReduceOp.AVERAGE and not self._lag
        if exchange is None or idempotent or not exchange.holds_any():
            return
        exchange.refuse(self._where())
        raise UsageError(
            f"gradients that op={self._terms.how.op.label} had reduced were computed again before step(): pass "
            "backward_passes_per_step=N to reduce the sum of N passes, or op=Average without GradientLag, or call "
            "zero_grad() in between"
        )

    def _refuse_siblings(self, siblings: Sequence[GradientReducer[Any]]) -> None:
        """Refuse two optimizers that reduce the same gradient, unless both average, which changes nothing."""
        siblings = [each for each in siblings if each._is_needed(current("the reduction of gradients"))]
        if all(each.op is ReduceOp.AVERAGE and not each._lag for each in (self, *siblings)):
            return
        shared = {id(p) for each in siblings for p in each.params() if self._tensors.is_trained(p)}
        names = [self._identity.name(p, i) for i, p in enumerate(self.params()) if id(p) in shared]
        if names and self._exchange is not None:
            self._exchange.refuse(self._where())
            raise UsageError(
                f"two distributed optimizers train {names[0]}, whose gradient both would reduce: that is right only "
                "if both have op=Average and no GradientLag. Make one optimizer of all parameters, or drop the one "
                "that is not used any more (del optimizer, and its scheduler)"
            )
