"""``run``: a training function that goes on when workers come and go.

    @run
    def train(state):
        while state.epoch < 90:
            ...
            state.epoch += 1
            state.commit()

    train(state)

The process, its model and its data stay. When a worker was lost, or others are to come, those that are left join the
next generation, agree on the newest state, and the function is called again.
"""

# All of this runs in the thread that calls ``train``. The one thing that interrupts it is SIGTERM, whose handler Python
# runs in the main thread between two bytecodes of whatever is under way there: user code, a collective, ``rejoin``.
# So the handler takes no lock, and raises nothing while there is a session: an exception in the middle of a step would
# cost all ranks that step. It sets a flag and has the session say in the next vote, or commit, that a change is due;
# all ranks then leave their generation at the same commit, and this one looks at its flag. The flag outlives the
# session, which may have heard of the signal in its last moment. Nor does it raise on top of ``shutdown`` and
# ``rejoin``, of which an exception between two lines would leave half: sockets that are open, for which something
# waits later and for ever. It has the wait for the next generation end (``withdraw``), and ``_Turn._rejoin`` looks at
# the flag. So it raises only where this process is in no session and at neither: as nobody else would.

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast, final

from farandole import events
from farandole.control.run_messages import Progressed
from farandole.elastic.worker.layout import Layout
from farandole.elastic.worker.state import State
from farandole.errors import AbortError, CollectiveError, HostsUpdatedInterrupt, MismatchError, StartError
from farandole.runtime.session.init import current, finish, is_initialized, rejoin, shutdown, withdraw

S = TypeVar("S", bound=State)
P = ParamSpec("P")
R = TypeVar("R")

DIED_OF_IT = ("is killed by signal: Terminated", "terminated abruptly")
"""Words of errors of a child process that a scheduler's SIGTERM, which all processes get, may have ended first."""

OWN_NOTICE_S = 1.0
"""Wait for the SIGTERM of this process itself then."""

CHILD_HANDLERS = "torch.utils.data._utils.signal_handling"
"""Module of the SIGCHLD handler that raises, between any two lines, where a process of a data loader dies."""

ATTEMPTS = 3
"""Attempts to repeat one step after errors that no other worker's end explains."""


def run(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Call ``func(state, ...)``, and again after every change of the workers, until it returns.

    >>> @hvd.elastic.run
    ... def train(state): ...
    >>> train(hvd.elastic.TorchState(model, optimizer, epoch=0))

    What ended the call decides what ``state`` is then: after a fault, what ``State.restore`` says; after a planned
    change, what it was. Raises what ``func`` raises, unless it says that a generation has ended; ``StartError`` if
    there are too few workers for too long; and ``MismatchError``, as the ranks then run different programs.

    A worker that gets SIGTERM leaves at the next commit with exit status 143 (``SystemExit``), and no step is lost: so
    schedulers give notice. An error that ``func`` raises meanwhile, as of a child process that got the same signal, is
    a leave as at the last commit. From then on SIGTERM is ignored, as the script may write a last checkpoint. A script
    that handles SIGTERM itself keeps its handler.
    """

    @functools.wraps(func)
    def train(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        turn = _Turn(state)
        with _Notice() as notice:
            while True:
                try:
                    turn.begin(notice)
                    return func(state, *args, **kwargs)
                except MismatchError:  # a CollectiveError, but ranks that run different programs will differ again
                    raise
                except CollectiveError as error:
                    turn = turn.after_fault(error)
                    state.restore()  # before the worker may end: what its script then saves has been committed
                    notice.heed()  # before the next turn: a worker that is to end must not become a member once more
                except HostsUpdatedInterrupt:
                    notice.heed()
                    turn = turn.after_change()
                except Exception as error:
                    if not notice.explains(error):
                        raise
                    state.restore()
                    notice.heed()

    return cast("Callable[Concatenate[S, P], R]", train)


@final
class _Notice:
    """SIGTERM handler while an elastic worker trains: it ends where the state is whole and the others have it."""

    def __init__(self) -> None:
        # Python lets no other thread set a handler, and calls none elsewhere than in the main thread.
        is_ours = threading.current_thread() is threading.main_thread()
        is_free = is_ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        self._listens = is_free and current("elastic.run").settings.is_elastic
        self._given = False
        self._handler = lambda *_: self._give()

    def __enter__(self) -> _Notice:
        if self._listens:
            signal.signal(signal.SIGTERM, self._handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._listens and signal.getsignal(signal.SIGTERM) is self._handler:  # or the script has set its own
            # A worker that ends may be writing a last checkpoint when it is told again.
            leaves = kind is SystemExit and self._given
            signal.signal(signal.SIGTERM, signal.SIG_IGN if leaves else signal.SIG_DFL)
            if leaves and getattr(signal.getsignal(signal.SIGCHLD), "__module__", "") == CHILD_HANDLERS:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or it might raise while that is written

    def explains(self, error: Exception) -> bool:
        """True if SIGTERM has come before ``error``, which is then told, or comes now to one that tells of it."""
        until_s = time.monotonic() + OWN_NOTICE_S
        while self._listens and not self._given and any(words in str(error) for words in DIED_OF_IT):
            if time.monotonic() >= until_s:
                return False
            time.sleep(0.01)
        if self._given:
            events.logger.warning(
                "after SIGTERM the training function has raised %s: %s; this worker leaves as at its last commit",
                type(error).__name__,
                error,
            )
        return self._given

    def heed(self) -> None:
        """End the worker by ``SystemExit`` if SIGTERM has come."""
        if self._given:
            if is_initialized():  # else the others would wait for the end of the process, which may take a second
                finish()  # first: a checkpoint that all ranks write would be lost with this one's share
                current().leave_for_good()
            raise SystemExit(128 + signal.SIGTERM)

    def _give(self) -> None:
        self._given = True
        if is_initialized():
            self.announce()
            current().forget_orders()  # all workers are told when a job's time is up: a pause must not outlast it
        elif not withdraw():
            # It is in no session, and nobody reads ``change_due``. In a forked child (of a data loader, say) this ends
            # the child, as SIGTERM should.
            self.heed()

    @property
    def has_come(self) -> bool:
        """True if SIGTERM has."""
        return self._given

    def announce(self) -> None:
        """Have the session say that a change is due, if SIGTERM has come."""
        if self._given:
            current().change("a worker was told to end (SIGTERM)")


@final
class _Turn:
    """One call of the training function in one generation. The first begins where ``init`` has left the worker.

    A later one begins with the end of the generation before, and tells how long it took until the next step.
    ``failures`` counts how often the step that is next has failed without another worker's end to explain it.
    """

    def __init__(self, state: State, because: str = "", failures: int = 0, *, is_planned: bool = False) -> None:
        self._state, self._step_vote, self._because = state, state._step_vote, because
        self._is_planned = is_planned
        self._step, self._failures = self._step_vote.step, failures
        self._begun_s = self._formed_s = time.monotonic()

    def begin(self, notice: _Notice) -> None:
        """Join a generation if need be, and bring the state to that of all ranks."""
        if self._because:
            self._step_vote.reach("reform")
            self._rejoin(notice)
            self._formed_s = time.monotonic()
            self._state.on_reset()
        elif current("elastic.run").provisional:
            self._state._joined = True
            self._rejoin(notice)
        Layout.is_planned = self._is_planned
        self._state.sync()
        self._state._joined = False
        if self._because:
            synced_s = time.monotonic()
            self._step_vote.on_recovered = lambda: self._tell(time.monotonic() - synced_s)

    def _rejoin(self, notice: _Notice) -> None:
        """Leave the session and join the next generation, unless this worker was told to end."""
        shutdown()
        try:
            # A signal that came until now has told the session only, and that is gone. One that comes after this line
            # ends the wait. In both cases the others are told, who would else wait for the end of this process.
            rejoin(self._state.content, self._state._step, notice.has_come)
        except StartError:
            notice.heed()
            raise
        notice.announce()  # it may have come after the wait, and before there was a session to be told

    def after_fault(self, error: CollectiveError) -> _Turn:
        """The next turn; raises ``error`` once the same step has failed too often."""
        failures = 0
        if not isinstance(error, AbortError):  # those have another worker's end to explain them, and may be many
            failures = 1 + (self._failures if self._step_vote.step == self._step else 0)
        if failures > ATTEMPTS:
            raise error
        return _Turn(self._state, str(error), failures)

    def after_change(self) -> _Turn:
        """The next turn, after a planned change."""
        because = f"a change: {current().change_due or 'other workers have heard of it'}"
        return _Turn(self._state, because, is_planned=True)

    def _tell(self, first_step_s: float) -> None:
        session, synced = current(), self._state._synced
        recovery = events.Recovery(
            time_s=time.monotonic(),
            because=self._because,
            generation=session.generation,
            rank=session.topology.rank,
            size=session.topology.size,
            step=self._step_vote.step,
            form_s=self._formed_s - self._begun_s,
            agree_s=synced.agree_s if synced else 0.0,
            transfer_s=synced.transfer_s if synced else 0.0,
            first_step_s=first_step_s,
            transfer_bytes=synced.nbytes if synced else 0,
        )
        events.emit(recovery)
        if recovery.rank == 0:
            events.logger.info("%s", recovery.text)
            if self._is_planned:  # what a fault costs says nothing of what a change would
                session.report(Progressed({}, pause_s=recovery.total_s))
