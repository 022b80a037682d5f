"""``run``: a training function that goes on when workers join, leave or fail.

    @run
    def train(state):
        while state.epoch < 90:
            ...
            state.epoch += 1
            state.commit()

    train(state)

The process keeps its model and its data. After a worker was lost, or before new workers join, the remaining workers
form the next generation, agree on the newest state, and call the function again.
"""

# All code here runs in the thread that calls ``train``. Only SIGTERM interrupts it: Python runs the handler in the main
# thread between two bytecodes of user code, a collective or ``rejoin``. So the handler takes no lock, and raises
# nothing while there is a session: an exception in the middle of a step would cost all ranks that step. The handler
# sets a flag and makes the session report, in the next vote or commit, that a change is due; all ranks then leave their
# generation at the same commit, and this rank checks its flag. The flag outlives the session, which may have got the
# signal in its last moment. The handler does not raise inside ``shutdown`` and ``rejoin`` either: an exception between
# two of their lines would leave sockets open, for which some code would later wait for ever. Instead it ends the wait
# for the next generation (``withdraw``), and ``_Turn._rejoin`` checks the flag. So the handler raises only where this
# process is in no session and in neither function, because no other code would raise there.

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
"""Error texts about a child process that a scheduler's SIGTERM, sent to all processes, may have killed first."""

OWN_NOTICE_S = 1.0
"""Seconds to wait for the SIGTERM of this process itself after such an error."""

CHILD_HANDLERS = "torch.utils.data._utils.signal_handling"
"""Module of the SIGCHLD handler that raises, between any two lines, when a process of a data loader dies."""

ATTEMPTS = 3
"""Attempts to repeat one step after errors that the exit of another worker does not explain."""


def run(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Call ``func(state, ...)``, and again after every change of the workers, until it returns.

    >>> @hvd.elastic.run
    ... def train(state): ...
    >>> train(hvd.elastic.TorchState(model, optimizer, epoch=0))

    Before the next call, ``state`` is restored (``State.restore``) after a fault, and unchanged after a planned change.
    Raises what ``func`` raises, except errors that report the end of a generation; ``StartError`` if there are too few
    workers for too long; and ``MismatchError``, because the ranks then run different programs.

    A worker that gets SIGTERM, with which schedulers give notice, leaves at the next commit with exit status 143
    (``SystemExit``), and no step is lost. If ``func`` raises before that commit, for example because a child process
    got the same signal, the worker leaves with the state of the last commit. Afterwards SIGTERM is ignored, because the
    script may write a last checkpoint. A script that handles SIGTERM itself keeps its handler.
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
                    state.restore()  # before the worker may exit: its script may then save only committed state
                    notice.heed()  # before the next turn: a worker that got SIGTERM must not become a member again
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
    """SIGTERM handler of an elastic worker: the worker exits where its state is whole and other workers have it."""

    def __init__(self) -> None:
        # Python sets and calls signal handlers only in the main thread.
        is_ours = threading.current_thread() is threading.main_thread()
        is_free = is_ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        self._listens = is_free and current("elastic.run").settings.is_elastic
        self._given = False
        self._handler = lambda *_: self._on_sigterm()

    def __enter__(self) -> _Notice:
        if self._listens:
            signal.signal(signal.SIGTERM, self._handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._listens and signal.getsignal(signal.SIGTERM) is self._handler:  # else the script has set its own
            # A worker that exits may be writing a last checkpoint when a second SIGTERM arrives.
            leaves = kind is SystemExit and self._given
            signal.signal(signal.SIGTERM, signal.SIG_IGN if leaves else signal.SIG_DFL)
            if leaves and getattr(signal.getsignal(signal.SIGCHLD), "__module__", "") == CHILD_HANDLERS:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else it might raise while the checkpoint is written

    def explains(self, error: Exception) -> bool:
        """True if SIGTERM arrived before ``error``, or arrives now and the text of ``error`` suggests it. Logs it."""
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
        """End the worker by ``SystemExit`` if SIGTERM has arrived."""
        if self._given:
            if is_initialized():  # else other workers would wait for the exit of this process, up to a second
                finish()  # first: a checkpoint that all ranks write would lack the part of this rank
                current().end.leave_for_good()
            raise SystemExit(128 + signal.SIGTERM)

    def _on_sigterm(self) -> None:
        self._given = True
        if is_initialized():
            self.announce()
            current().forget_orders()  # all workers get SIGTERM at a job's time limit: no pause may outlast it
        elif not withdraw():
            # There is no session, and nothing reads ``change_due``. In a forked child (of a data loader, say) this ends
            # the child, which SIGTERM should do.
            self.heed()

    @property
    def has_come(self) -> bool:
        """True if SIGTERM has arrived."""
        return self._given

    def announce(self) -> None:
        """Make the session report that a change is due, if SIGTERM has arrived."""
        if self._given:
            current().change("a worker was told to end (SIGTERM)")


@final
class _Turn:
    """One call of the training function in one generation. The first turn begins after ``init``.

    A later turn begins at the end of the previous generation, and reports the time until the next step. ``failures``:
    how often the next step has failed without the exit of another worker to explain it.
    """

    def __init__(self, state: State, because: str = "", failures: int = 0, *, is_planned: bool = False) -> None:
        self._state, self._step_vote, self._because = state, state._step_vote, because
        self._is_planned = is_planned
        self._step, self._failures = self._step_vote.step, failures
        self._begun_s = self._formed_s = time.monotonic()

    def begin(self, notice: _Notice) -> None:
        """Join a generation if needed, and synchronize the state."""
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
            self._step_vote.on_recovered = lambda: self._emit_recovery(time.monotonic() - synced_s)

    def _rejoin(self, notice: _Notice) -> None:
        """Leave the session and join the next generation, unless this worker was told to end."""
        shutdown()
        try:
            # A SIGTERM before this line was reported only to the session, which is closed. A SIGTERM after this line
            # ends the wait. Both times other workers are notified, which would else wait for this process to exit.
            rejoin(self._state.content, self._state._step, notice.has_come)
        except StartError:
            notice.heed()
            raise
        notice.announce()  # SIGTERM may have arrived after the wait and before the new session

    def after_fault(self, error: CollectiveError) -> _Turn:
        """The next turn; raises ``error`` once the same step has failed too often."""
        failures = 0
        if not isinstance(error, AbortError):  # another worker's exit explains these, and there may be many
            failures = 1 + (self._failures if self._step_vote.step == self._step else 0)
        if failures > ATTEMPTS:
            raise error
        return _Turn(self._state, str(error), failures)

    def after_change(self) -> _Turn:
        """The next turn, after a planned change."""
        because = f"a change: {current().change_due or 'other workers were notified of it'}"
        return _Turn(self._state, because, is_planned=True)

    def _emit_recovery(self, first_step_s: float) -> None:
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
            if self._is_planned:  # the cost of a fault does not predict the cost of a change
                session.report(Progressed({}, pause_s=recovery.total_s))
