"""Warm worker of a search: a process that joins one trial after the other, and keeps its loaded modules.

It finds the search by ``FARANDOLE_CALLER``, a contact in JSON, and has a ``FARANDOLE_WORKER_ID`` in its pool; the
search sets both. A trial is an elastic job whose controller is in the process of the search: the worker joins it with
``init()``, as in any elastic job, with another ``FARANDOLE_WORKER_ID`` each time.
"""

from __future__ import annotations

import contextlib
import gc
import numbers
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import final

from farandole.cluster.contact import Contact, is_loopback
from farandole.cluster.environment import CALLER, OWN, WORKER_ID, variables_for
from farandole.control.agent_messages import WorkerSpec
from farandole.control.channel import Dealer
from farandole.control.dial import first_answering
from farandole.control.entry import entry_command
from farandole.control.keys import JobKeys
from farandole.control.search_messages import (
    PoolHello,
    PoolRetire,
    TrialLeft,
    TrialOrder,
    TrialReport,
    TrialVerdict,
)
from farandole.errors import AbortError, ControlError, FarandoleError, StartError
from farandole.runtime.session.init import begin_anew, current, is_initialized
from farandole.runtime.session.tracebacks import folded
from farandole.search.trial import Trial, TrialEnded
from farandole.settings import IDENTITY, Settings
from farandole.topology import Topology
from farandole.version import __version__

MODULE = "farandole.search.worker"

POOL = b"pool-"
"""Prefix of the identities of pool workers."""

LENT = "lent"
"""Argument of a worker on a node that a scheduler may take back."""

DISMISSED = (None, 0, 128 + signal.SIGTERM)
"""Codes of ``SystemExit`` with which an elastic job dismisses a worker."""


def pool_worker(worker_id: int, contact: Contact, *, is_lent: bool) -> WorkerSpec:
    """Process to start for the search at ``contact``; ``is_lent``: on a node that a scheduler may take back."""
    command = [*entry_command(MODULE), *([LENT] if is_lent else [])]
    return WorkerSpec(worker_id, command, {CALLER: contact.encode().decode(), WORKER_ID: str(worker_id)})


def main() -> None:
    """Serve the search until it no longer needs this process."""
    told, worker_id = os.environ.pop(CALLER, ""), os.environ.pop(WORKER_ID, "-1")
    if not told:
        sys.exit("farandole: this process is a worker of farandole.search(), which starts it; you cannot")
    if LENT in sys.argv:
        # Slurm sends SIGTERM to all processes of a job. The agent handles it, and the search makes the workers leave.
        # A handler and not SIG_IGN, which programs that a trial starts would inherit.
        _sigterm.install()
    try:
        serve(Contact.decode(told.encode()), int(worker_id))
    except (ControlError, StartError) as error:
        sys.exit(f"farandole: a worker of the search ends: {error}")


@final
class _Sigterm:
    """SIGTERM handler on a lent node: notes that the signal ``came``. Forked children get the default handler again.

    In a forked child, Python drops signals that arrive before the child's hooks run: SIGTERM is blocked until then.
    """

    def __init__(self) -> None:
        self.came = False
        self._before = threading.local()  # signal masks of the threads that fork

    def __call__(self, *_: object) -> None:
        self.came = True

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self)
        os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._give_up)

    def _hold(self) -> None:
        self._before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def _release(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before.mask)

    def _give_up(self) -> None:
        if signal.getsignal(signal.SIGTERM) is self:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._release()


_sigterm = _Sigterm()


def serve(contact: Contact, worker_id: int) -> None:
    """Work for the search at ``contact``, as this worker of its pool, until it no longer needs this process."""
    with _connect(contact) as dealer:
        _Worker(dealer, contact, worker_id).serve()


def _connect(contact: Contact) -> Dealer:
    keys, timeout_s = JobKeys.from_secret(contact.key), Settings.resolve().start_timeout_s
    address = contact.addresses[0]
    if not is_loopback(address):
        address = first_answering(contact.addresses, keys, timeout_s)
    return Dealer(address, POOL + uuid.uuid4().hex.encode(), keys, timeout_s)


@final
class _Worker:
    """Loop of the process; everything runs in its main thread, training functions, too."""

    def __init__(self, dealer: Dealer, contact: Contact, worker_id: int) -> None:
        self._dealer = dealer
        host = os.environ.get(OWN.hostname) or socket.gethostname()
        for name in IDENTITY:
            os.environ.pop(name, None)
        forecast = variables_for(Topology.of(0, (host,), 0), dealer.address, contact.key)
        os.environ.update({**forecast, "FARANDOLE_MIN_NP": "1", "HOROVOD_ELASTIC": "1"})
        dealer.send(PoolHello(host, os.getpid(), __version__, worker_id))

    def serve(self) -> None:
        """Carry out orders until ``PoolRetire``, or until the search has exited."""
        is_frozen = False
        while not isinstance(order := self._dealer.recv(), PoolRetire):
            if isinstance(order, TrialOrder):
                left = self._take_part(order)
                gc.collect()  # free the model of this trial before the next trial begins
                if not is_frozen:  # a flag, because ``gc.get_freeze_count()`` counts all objects
                    gc.freeze()  # imported modules stay: each collection would look through them for a second
                    is_frozen = True
                self._dealer.send(left)

    def _take_part(self, order: TrialOrder) -> TrialLeft:
        os.environ[WORKER_ID] = str(order.worker_id)
        with _output_to(order.output):
            try:
                function = pickle.loads(order.call)  # noqa: S301 (from the search, over its authenticated channel)
                value = function(Trial(order, self._request_verdict))
                left = TrialLeft(order.worker_id, _rank(), "returned", _number(value))
                begin_anew()
            except TrialEnded as ended:
                left = TrialLeft(order.worker_id, _rank(), "ended", text=str(ended))
                begin_anew()
            except BaseException as error:
                left = self._after(order, error)
        os.environ.pop(WORKER_ID, None)
        return left

    def _after(self, order: TrialOrder, error: BaseException) -> TrialLeft:
        rank = _rank()
        if isinstance(error, SystemExit) and error.code in DISMISSED:
            begin_anew()
            return TrialLeft(order.worker_id, rank, "dismissed")
        if isinstance(error, AbortError):
            begin_anew()
            return TrialLeft(order.worker_id, rank, "lost", text=str(error))
        summary, text = "".join(traceback.format_exception_only(error)).strip(), folded(error)
        error.__traceback__ = None  # it holds the frames of the function, and with them the model
        begin_anew(error)
        sys.stderr.write(text)
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, ControlError) and self._dealer.lost):
            raise error
        # All processes of the node have got SIGTERM. If it has killed a data loader's workers, the function raises.
        return TrialLeft(order.worker_id, rank, "lost" if _sigterm.came else "raised", text=summary)

    def _request_verdict(self, report: TrialReport) -> TrialVerdict:
        self._dealer.send(report)
        while not isinstance(answer := self._dealer.recv(), TrialVerdict) or answer.epoch != report.epoch:
            pass  # the answer to an earlier report that was interrupted
        return answer


def _rank() -> int:
    return current().topology.rank if is_initialized() and not current().provisional else -1


def _number(value: object) -> float | None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type] # a Real


@contextlib.contextmanager
def _output_to(path: str) -> Iterator[None]:
    """Context that redirects the output of this process and its children to a file."""
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    kept = [os.dup(1), os.dup(2)]
    try:
        for number in (1, 2):
            os.dup2(fd, number)
        with _streams_to(fd):
            yield
    finally:
        with contextlib.suppress(FarandoleError, OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
        for each in (fd, *kept):
            os.close(each)


@contextlib.contextmanager
def _streams_to(fd: int) -> Iterator[None]:
    """Redirect ``sys.stdout`` and ``sys.stderr`` to a file, too, if they are no files: an engine's send messages."""
    if sys.stdout is sys.__stdout__:
        yield
        return
    with (
        os.fdopen(os.dup(fd), "w", buffering=1) as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        yield


if __name__ == "__main__":
    main()
