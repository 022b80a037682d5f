"""``farandole.run``: call a Python function on N workers, from a script, a test or a notebook.

    def train(epochs):
        import farandole.torch as hvd
        hvd.init()
        ...
        return hvd.rank()

    farandole.run(train, args=(3,), np=4)          # [0, 1, 2, 3]

The launcher's loop runs in the calling thread; there is no process besides the agent and the workers. The function
travels as bytes over the job's authenticated connections; workers unpickle it, and nobody else does.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import cloudpickle
import msgspec

from farandole.control.entry import entry_command
from farandole.errors import ControlError, RemoteError, UsageError
from farandole.launch.launcher import Launcher
from farandole.launch.plan import Job
from farandole.launch.ssh import Ssh
from farandole.launch.task import MODULE, Failure, Task
from farandole.launch.where import Means, read_hosts, where
from farandole.settings import Settings


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    *,
    hosts: str = "",
    hostfile: str = "",
    ssh: Ssh | None = None,
    output_filename: str = "",
    verbose: bool = False,
    env: Mapping[str, str] | None = None,
    python_path: Sequence[str] = (),
    **knobs: Any,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on ``np`` new workers and return what they returned, in rank order.

        farandole.run(train, kwargs={"lr": 0.1}, np=2, engine="gloo", start_timeout_s=60)

    ``func`` is pickled with cloudpickle, so that it may be a closure or live in a notebook. The workers run on this
    host, or on ``hosts`` (``"a:2,b:2"``) or those of a ``hostfile``, as with ``farandole run``; ``ssh`` holds options
    for getting there. ``env`` holds variables for the workers, ``output_filename`` a folder for their output instead of
    this process's own; ``python_path`` is put before their ``PYTHONPATH``. ``knobs`` are settings by their names; an
    unknown one is refused with the legal ones.

    Raises ``RemoteError`` with the remote traceback, from the original exception, if a worker raises (the others are
    ended); ``ControlError`` if one ends without a result. A ``KeyboardInterrupt`` ends the workers and goes on.
    """
    if np < 1:
        raise UsageError(f"np={np} asks for no worker; it must be at least 1")
    settings = Settings.resolve(arguments=knobs)
    # Results come straight to this process, so that none can arrive after the news of its worker's end.
    settings = msgspec.structs.replace(settings, tree_radix=max(settings.tree_radix, np))
    means = Means("auto" if hosts or hostfile else "local", ssh or Ssh())
    placed, starter = where(np, read_hosts(hosts, hostfile), means, os.environ, socket.gethostname())
    job = Job(
        command=entry_command(MODULE),
        hosts=placed,
        settings=settings,
        starter=starter,
        output_dir=output_filename,
        verbose=verbose,
        python_path=tuple(python_path),
        environment=dict(env or {}),
    )
    results = _Results()
    task = msgspec.msgpack.encode(Task(list(sys.path), cloudpickle.dumps((func, tuple(args), dict(kwargs or {})))))
    outcome = Launcher(job, task=task, on_result=results.add).run()
    return results.collect(job, outcome.status, outcome.words)


@final
class _Results:
    """What the workers sent back, by rank; failures in the order in which they came."""

    def __init__(self) -> None:
        self._values: dict[int, bytes] = {}
        self._failures: list[tuple[int, Failure]] = []

    def add(self, place: int, ok: bool, payload: bytes) -> None:
        """Keep one; nothing is unpickled while the job runs."""
        if ok:
            self._values[place] = payload
        else:
            self._failures.append((place, msgspec.msgpack.decode(payload, type=Failure)))

    def collect(self, job: Job, status: int, words: str) -> list[Any]:
        """All values, or the error of the first that failed, and not because others had."""
        for place, failure in sorted(self._failures, key=lambda each: each[1].is_consequence)[:1]:
            error = RemoteError(place, job.hosts[place], failure.summary, failure.traceback)
            raise error from _original(failure)
        if status:
            raise ControlError(words)
        missing = [place for place in range(job.size) if place not in self._values]
        if missing:
            raise ControlError(f"ranks {missing} ended well but returned nothing: did the function call os._exit()?")
        return [pickle.loads(self._values[place]) for place in range(job.size)]  # noqa: S301 (from our own workers)


def _original(failure: Failure) -> BaseException | None:
    """The exception object, where it can be had here: its class may be unknown to this process."""
    try:
        found = pickle.loads(failure.exception)  # noqa: S301 (from our own workers)
    except Exception:
        return None
    return found if isinstance(found, BaseException) else None
