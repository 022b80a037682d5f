"""``farandole.run``: call a Python function on N workers, from a script, a test or a notebook.

    def train(epochs):
        import farandole.torch as hvd
        hvd.init()
        ...
        return hvd.rank()

    farandole.run(train, args=(3,), np=4)          # [0, 1, 2, 3]

The launcher's loop runs in the calling thread; the only other processes are the agent and the workers (in a static job;
for elastic jobs see ``elastic_function``). The function is sent as bytes over the job's authenticated connections; only
workers unpickle it.
"""

from __future__ import annotations

import io
import linecache
import os
import socket
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final

import cloudpickle
import msgspec

from farandole.control.entry import entry_command
from farandole.errors import UsageError
from farandole.launch.agents.ssh import Ssh
from farandole.launch.function.results import Results, values_of
from farandole.launch.function.task import MODULE, Task
from farandole.launch.hosts.placement import read_hosts, where
from farandole.launch.hosts.plan import Job
from farandole.launch.hosts.starters import Means
from farandole.launch.job.launcher import Launcher
from farandole.settings import Settings


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
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
    """Call ``func(*args, **kwargs)`` on ``np`` new workers (default: 1); return their return values in rank order.

        farandole.run(train, kwargs={"lr": 0.1}, np=2, engine="shm", start_timeout_s=60)
        farandole.run(train, min_np=2, max_np=8, hostfile="hosts.txt")

    ``func`` is pickled with cloudpickle, so it may be a closure or be defined in a notebook. The workers run on this
    host, or on ``hosts`` (``"a:2,b:2"``) or the hosts of a ``hostfile``, as with ``farandole run``; ``ssh``: options to
    reach them. ``env``: variables for the workers; ``output_filename``: a folder for their output instead of this
    process's streams; ``python_path`` is put before their ``PYTHONPATH``. ``knobs``: settings by name; an unknown name
    is refused with the legal ones.

    With ``min_np``, ``max_np`` or ``host_discovery_script`` workers join and leave: the results are those of the
    workers that finished, and failures from which the job recovered raise no error.

    Raises ``RemoteError`` with the remote traceback, from the original exception, if a worker raises (the others are
    ended); ``ControlError`` if one ends without a result. A ``KeyboardInterrupt`` ends the workers and is re-raised.
    """
    job = function_job(env, python_path, knobs)
    job = msgspec.structs.replace(job, output_dir=output_filename, verbose=verbose)
    if np is not None and np < 1:
        raise UsageError(f"np={np} asks for no worker; it must be at least 1")
    run_job = _run_elastic if job.settings.is_elastic else _run_static
    return run_job(job, np, hosts, hostfile, ssh or Ssh(), packed(func, args, kwargs))


def function_job(env: Mapping[str, str] | None, python_path: Sequence[str], knobs: Mapping[str, Any]) -> Job:
    """The job of a function, without hosts."""
    return Job(
        command=entry_command(MODULE),
        hosts=(),
        settings=Settings.resolve(arguments=knobs),
        python_path=tuple(python_path),
        environment=dict(env or {}),
    )


def packed(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    """Encode the function and its arguments for workers, with the source of its notebook cells."""
    file = io.BytesIO()
    _NamingPickler(file).dump((func, tuple(args), dict(kwargs or {})))
    call = file.getvalue()
    return Task(list(sys.path), call, _cells_in(call)).encode()


def _named_code(code: types.CodeType) -> Any:
    """Reduce a code object, keeping its file name for tracebacks: cloudpickle 3.1.3 replaces the name."""
    build, arguments, *rest = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    named = tuple(code.co_filename if each == "<dynamic-code>" else each for each in arguments)
    return build, named, *rest


@final
class _NamingPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that keeps the names of notebook cells in tracebacks of functions."""

    dispatch_table: ClassVar[Any] = ChainMap({types.CodeType: _named_code}, cloudpickle.Pickler.dispatch_table)


def _cells_in(call: bytes) -> dict[str, str]:
    """Sources without a file, such as notebook cells, of the functions in ``call``, by the code's file name."""
    return {
        name: "".join(entry[2])
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None and name.encode() in call
    }


def _run_elastic(job: Job, np: int | None, hosts: str, hostfile: str, ssh: Ssh, task: bytes) -> list[Any]:
    from farandole.launch.function import elastic_function  # not imported for static jobs

    return elastic_function.run_elastic(elastic_function.JobRequest(job, np, hosts, hostfile, ssh), task)


def _run_static(job: Job, np: int | None, hosts: str, hostfile: str, ssh: Ssh, task: bytes) -> list[Any]:
    np = 1 if np is None else np
    means = Means("auto" if hosts or hostfile else "local", ssh)
    placed, starter = where(np, read_hosts(hosts, hostfile), means, os.environ, socket.gethostname())
    # Without relays: results are sent directly to this process, so none arrives after its worker's exit report.
    settings = msgspec.structs.replace(job.settings, tree_radix=max(job.settings.tree_radix, np))
    job = msgspec.structs.replace(job, hosts=placed, starter=starter, settings=settings)
    results = Results()
    outcome = Launcher(job, task=task, on_result=results.add).run()
    return values_of(results, job.size, outcome.words if outcome.status else "", outcome.cause)
