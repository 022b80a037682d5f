"""Reduction of gradients at its time: at the end of a backward pass, or in ``step()`` where there was none.

    reducer = ListReducer(tensors, params, key, ReductionOptions())
    means = reducer.reduce(gradients)           # frameworks that hand gradients in and want them back
    reducer.vote()
    reducer.stepped()

Frameworks whose gradients appear one by one (PyTorch) have a subclass with hooks, which calls ``begin_pass``,
``completed`` and ``end_pass``.
"""

# Threads. ``completed`` and ``end_pass`` may run on a thread of the framework: for host memory that is the one that
# calls ``backward()``, for a device another one, for which the script waits in ``backward()``. So fields need no lock,
# as long as the parameters of one optimizer are on one device. What goes on beside the script has a thread and fields
# of its own: the buckets of an ``OverlappedPass``, the runs of a ``LaggedExchange``. During ``join()`` the script only
# waits, and a thread in ``serve`` has this object, except for ``label`` and ``forsake``.
#
# References. Only the optimizer holds its reducer (and ``join()``, for its time). Parameters hold hooks, and a model
# outlives its optimizers; ``_living``, ``SharedParameters`` and ``weakref.finalize`` are there as long as the
# process. Each of these refers to the reducer weakly or not at all, and ``params`` refers weakly to the optimizer. So
# an optimizer that a script drops is gone at that line, on every rank at the same one; in a cycle it is gone when a
# rank's garbage collector runs, and until then ranks disagree about which optimizers there are. (Schedulers and
# elastic states make cycles: see ``shared_parameters`` and ``join``.) The traceback of an error keeps the optimizer
# or its reducer on ranks that waited in here, and on no others: a notebook has the last one for long. So a reducer
# whose parameters another takes rests, without hooks, until its optimizer is used again.
#
# Order. All ranks use a lane in the same order, so a rank that raises cannot just leave: it ``refuse``s, which is its
# part of the meeting that the others are in or will come to, and then all raise.

from __future__ import annotations

import itertools
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import is_
from typing import Any, final

from farandole import events
from farandole.collective import ReduceOp
from farandole.elastic.worker.step_vote import Meet, StepVote, alone
from farandole.errors import UsageError
from farandole.gradients.exchange import GradientExchange
from farandole.gradients.lag import LaggedExchange
from farandole.gradients.observers import Observer, Passing
from farandole.gradients.optimizer_key import OptimizerKey
from farandole.gradients.overlap import OverlappedPass
from farandole.gradients.parameters import Parameters
from farandole.gradients.reducer import Reducer
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.shared_parameters import SharedParameters
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


def _is_living(label: str) -> bool:
    """True if an optimizer of this process has the ``label``."""
    return any(label == reducer.label for reducer in living_reducers())


class GradientReducer(Reducer[T]):
    """Reducer of the gradients of one optimizer, whose parameters ``params`` lists.

    A subclass says what takes part (``_watch``), and how its framework holds that (``_bound``). ``unhook`` is called
    when the optimizer is gone or rests, and must not refer to the reducer.
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
        self._held = _Held(unhook)
        self._lag = 0
        self._exchange: GradientExchange[T] | LaggedExchange[T] | None = None
        self._passes = self._steps = self._runs = 0
        self._reduced = False
        self._last_pass = -1
        self._overlapped: OverlappedPass[T] | None = None
        self._observer: Observer | None = None
        self._reads: Observer | None = None  # in this pass
        self._bound_to: list[Param] | None = None  # what ``_watch`` returned when the exchange was made or looked at
        self._kept = KeptGradients(tensors)
        self._rests = False  # as another has taken its parameters
        _living.add(self)
        _forget_accumulations_in_sessions()
        self._siblings = SharedParameters(self, _at_work)  # after that: it counts a change, and others then look
        # Not at exit: shutdown() ends the lanes then, and ``release`` waits without a limit for ranks that may be gone.
        weakref.finalize(self, self._held.release).atexit = False
        session = current("DistributedOptimizer()")
        self._take_over(session)
        if self._is_needed(session):
            self._watch()

    def _take_over(self, session: Session) -> None:
        """Have older ones rest whose parameters this one has: all of theirs, or some if another session was the last.

        Two that share some in one session may both be in use: a pass that the hooks of one do not see would be reduced
        in ``step()``, after a script has clipped it.
        """
        mine = set(map(id, self.params()))
        for older in _at_work():
            theirs = set(map(id, older.params()))
            if older is self or mine.isdisjoint(theirs):
                continue
            if theirs <= mine or older._identity.is_of_past(session):
                older._rests, older._reduced = True, False
                older._held.unhook()
                SharedParameters.changed()

    def _take_part(self) -> list[Param]:
        """``_watch``, as the optimizer is used: where this rested, it works again."""
        if self._rests:
            self._rests = False
            SharedParameters.changed()
        return self._watch()

    @abstractmethod
    def _watch(self) -> list[Param]:
        """Watch the parameters, also those that are new; returns those whose gradients are reduced.

        The same list again says that it holds the same parameters as then.
        """

    @abstractmethod
    def _bound(self, params: Sequence[Param], groups: Sequence[int]) -> Parameters[T]:
        """The parameters of a new exchange, with the numbers of their groups."""

    def settle(self) -> None:
        """Reduce what has not been reduced since the last step; a rank without a backward pass contributes zeros."""
        if self._reduced and not self._passes and not self._may_be_new():
            return
        session = current("step()")
        if self._is_needed(session):
            self._bind(session).refuse_failed_pass(self._where())
        if self.step_vote is not None:
            self._count(self.step_vote)  # of a pass that other ranks had, which the next one is not over
        self._reduce()

    def _may_be_new(self) -> bool:
        """True if gradients may have come since the last reduction that no pass has told of."""
        return False

    def rejoin(self, label: str) -> None:
        """See ``Reducer``."""
        self._identity.rename(label)
        self._steps = self._runs = 0
        self._overlapped = None
        self._forget_snapshots()
        self._drop_gradients()  # a fault may have left some reduced and others not
        if self.step_vote is not None or self._is_needed(current("the next generation")):
            self._take_part()  # also alone, to count the samples of passes

    def begin_session(self) -> None:
        """A session begins: an accumulation that had begun in another one is none of these ranks'."""
        if self._passes:
            self._drop_gradients()

    def _drop_gradients(self) -> None:
        self.restart()
        for param in self.params():
            self._tensors.set_gradient(param, None)

    def stepped(self) -> None:
        """The reduced gradients have been applied."""
        if self.step_vote is not None:
            self.step_vote.applied()
        self._steps += 1
        self._passes = self._runs = 0
        self._reduced = False
        self._passed, self._last_pass = 0, -1
        end_step(self._terms.process_set, None if self.step_vote is None else self.step_vote.step)
        if isinstance(self._exchange, GradientExchange):  # what lags meets on threads, at other steps of each rank
            self._exchange.lane.stop_if_interrupted()

    def zeroed(self) -> None:
        """The gradients have been zeroed: whatever comes next is new."""
        self._reduced = False

    def restart(self) -> None:
        """Forget how far an accumulation has come, and what is on its way."""
        self._passes = self._passed = 0
        self._reduced, self._last_pass = False, -1
        if isinstance(self._exchange, LaggedExchange):
            self._exchange.forget()

    def delay(self, lag: int) -> None:
        """From now on runs hand out the gradients of ``lag`` runs ago."""
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
        """The operation that gradients are reduced by."""
        return self._terms.how.op

    def carry(self, observer: Observer) -> None:
        """Let ``observer`` see what is reduced from now on, also where there is nobody to reduce with."""
        if self._observer is not None:
            raise UsageError("there is one already that reads the gradients of this optimizer: use that")
        self._observer = observer
        self._take_part()

    def drop(self) -> None:
        """Let the observer go: it sees nothing of what is reduced from now on."""
        self._observer = self._reads = None

    def serve(self) -> int:
        """Keep the other ranks company until all have joined, contributing nothing; returns for how many reductions."""
        if not self._is_needed(current("join()")):
            return 0
        served = self._bind(current()).serve()
        self._steps = self._runs = 0
        self._forget_snapshots()
        return served

    def forsake(self, served: Callable[[], object]) -> None:
        """End ``serve``, for which ``served`` waits: other ranks are without this optimizer."""
        # The thread in ``serve`` either has no lane yet, and waits in a pairing, or it waits in its lane.
        self._identity.withdraw(current("join()"))
        lanes, self._held.lanes = self._held.lanes, {}
        for lane in lanes.values():
            lane.abort("other ranks do not have this optimizer any more")
        if lanes:  # a pairing ends with a round of all ranks, to which the caller has yet to come: do not wait for it
            served()
        for lane in lanes.values():  # after the thread has left it: a lane is closed when nobody uses it any more
            lane.close()

    # -- during a backward pass ---------------------------------------------------------------------------------------

    def watch_again(self) -> None:
        """There are more parameters than before."""
        self._siblings.changed()

    def begin_pass(self) -> None:
        """A backward pass begins, whose first gradient is about to be complete."""
        self._overlapped = self._reads = None
        if self.step_vote is not None:
            self._count(self.step_vote)
        # In every pass: one that is out of reach has to be gone before its own end of the pass, and before the pairing.
        is_shared = bool(self._siblings.find())
        if self._observer is not None and not self._reduced:
            alone = not self._is_needed(current("backward()"))
            passing = Passing(self._steps, self._passes + 1, self.passes_per_step, alone)
            self._reads = self._observer if self._observer.begins(passing) else None
        if self._exchange is None or not self._exchange.overlaps or self._passes + 1 < self.passes_per_step:
            return
        if is_shared:  # the thread of the one would write gradients while that of the other reads them
            return
        session = current("the reduction of gradients")
        if self._is_needed(session):
            exchange = self._bind(session)
            if self._reduced:
                self._refuse_repetition()
            self._kept.begin()  # before the pass: its thread writes gradients from the next line on
            self._overlapped = exchange.begin_pass(self._where(), self._weigh)

    def completed(self, param: Param) -> None:
        """The gradient of ``param`` is complete, in a pass that has begun."""
        if self._overlapped is not None:
            if self._reads is not None:  # first: once it has arrived, another thread may reduce it where it lies
                self._reads.read([param])
            self._overlapped.arrived(param)

    def end_pass(self) -> None:
        """The pass is over."""
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
        self._passes = 0  # before anything that may raise: the next pass is the first of its accumulation
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
                sums = exchange.run(where, self._weigh, self._observer, self._uncompared())
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
        """The exchange for this session and these parameters."""
        if not self._identity.is_settled(session):
            self._pair(session)  # first: it may wait for threads of other ranks, and tells the order of the parameters
        watched, exchange = self._take_part(), self._exchange
        if exchange is not None and exchange.lane.session is not session:
            exchange = None
        if exchange is not None and watched is self._bound_to:  # the rule
            return exchange
        params = self._identity.arrange(watched)
        # Not ``params != exchange.params``: lists compare tensors by ``==``, which compares their elements.
        if exchange is None or len(params) != len(exchange.params) or not all(map(is_, params, exchange.params)):
            if isinstance(self._exchange, LaggedExchange):
                self._exchange.forget()  # its threads are in the lane that the next one uses
            exchange = self._exchange = self._make_exchange(session, params)
        self._bound_to = watched
        return exchange

    def _make_exchange(self, session: Session, params: list[Param]) -> GradientExchange[T] | LaggedExchange[T]:
        names = [f"{self.label}.{self._identity.name(p, i)}" for i, p in enumerate(params)]
        parameters = self._bound(params, self._terms.group_numbers(params))
        if not self._lag:
            return GradientExchange(self.lane(session), parameters, names, self._terms)
        lane = self.lane(session, ".lag")  # steps are voted while gradients are on their way
        terms = self._terms  # not ``self``, which the exchange must not refer to

        def make(shadows: Parameters[T]) -> GradientExchange[T]:
            return GradientExchange(lane, shadows, names, terms)

        lagged = LaggedExchange(parameters, self._lag, make)
        self._held.wait = lagged.forget  # no method of this reducer: ``_held`` would keep it alive
        return lagged

    def named(self) -> list[tuple[str, Param]]:
        """Names and parameters, in the order that the ranks have agreed on."""
        return [(self._identity.name(p, i), p) for i, p in enumerate(self._identity.arrange(self.params()))]

    def _named(self) -> list[tuple[str, Param]]:
        return self.named() if self._is_needed(current("step()")) and self._exchange is not None else []

    def _meet(self, snapshot: StepDigests | None) -> Meet:
        session = current("the vote of a step")
        return partial(self.lane(session).meet, snapshot=snapshot) if self._is_needed(session) else alone

    def lane(self, session: Session, purpose: str = "") -> PlannedLane:
        """The lane of this session; the first time, made by all members."""
        lane = self._held.lanes.get(purpose)
        if lane is None or lane.session is not session:
            if not self._identity.is_settled(session):
                self._pair(session)
            lane = self._held.lanes[purpose] = PlannedLane(session, self._terms.process_set, self.label + purpose)
        return lane

    def _pair(self, session: Session) -> None:
        """Find the others' reducers that belong to this one. Collective, once in each session."""
        self._bound_to = None  # the order of the parameters may become another one
        self._identity.settle(session, self.params(), _is_living)
        if not session.is_interactive:  # there, models outlive a failed cell, and ranks that are not at one step differ
            self._steps = 0  # members of a new session may have come from others, and count from here
        self._runs = 0
        self._forget_snapshots()

    def _weigh(self) -> float:
        """Weight of this rank's gradients in an average: by its number of samples where that is known, else 1."""
        if self.step_vote is None or self._terms.how.op is not ReduceOp.AVERAGE:
            return 1.0
        return self.step_vote.weigh()

    def _count(self, step_vote: StepVote) -> None:
        """Count the samples of a pass that begins; the same ones once in a step, however many passes are over them."""
        number, samples = step_vote.passing()
        self._passed += samples if number != self._last_pass else 0
        self._last_pass = number

    def _where(self) -> str:
        return f"step {self._steps}.{self._runs}"

    def _refuse_repetition(self) -> None:
        """Averaging what is averaged already changes nothing; any other reduction must see each gradient once."""
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
        """Two optimizers reduce a gradient twice, which changes nothing if both average."""
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


@final
class _Held:
    """Resources of a reducer outside of itself, hooks and lanes; given back when its optimizer is gone.

    An object of its own, as ``weakref.finalize`` keeps it alive: it must not refer to the reducer.
    """

    def __init__(self, unhook: Callable[[], object]) -> None:
        self.unhook = unhook
        self.lanes: dict[str, PlannedLane] = {}  # by purpose
        self.wait: Callable[[], object] = lambda: None  # until no thread uses them

    def release(self) -> None:
        """Release what the framework holds, wait until no thread of a lag is in a lane, close the lanes; called once.

        On whichever thread lets go of the reducer last, or collects the cycle that it is in.
        """
        self.unhook()  # first, so that no pass begins to use a lane that is closed next
        self.wait()
        for lane in self.lanes.values():
            lane.close()
