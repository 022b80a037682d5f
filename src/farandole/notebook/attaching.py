"""``attach``: engines of IPython Parallel take seats in a job, however they were started.

    ranks = farandole.notebook.attach(rc)

One task on all engines returns their reports and guards their cells. The engine of rank 0 starts the controller as its
child, and signed messages of the client carry its contact to the others. No port is guessed and no file is shared.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from farandole.errors import StartError, UsageError
from farandole.notebook import guard
from farandole.notebook.guard import EngineReport
from farandole.notebook.live_view import RanksView, begin_view
from farandole.notebook.ranks import EngineInSeat, EngineRanks
from farandole.version import __version__

LOOK_S = 0.1

ENCRYPT = (
    "the secret of the job would travel between hosts readable: let IPython Parallel encrypt its connections "
    "(c.IPController.enable_curve = True in ipcontroller_config.py)"
)

_attached: weakref.WeakSet[EngineRanks] = weakref.WeakSet()


def attach(
    client: Any, *, timeout_s: float = 60.0, live: bool | None = None, record: str | os.PathLike[str] = ""
) -> EngineRanks:
    """Make ranks of all engines of an ``ipyparallel.Client``, in the order of their numbers; then ``%%px`` cells train.

        rc = ipyparallel.Cluster(n=4).start_and_connect_sync()
        ranks = farandole.notebook.attach(rc)

        %%px
        import farandole.torch as hvd
        hvd.init()

    A second call, also from a restarted kernel, makes a new job of the current engines; their variables stay. In a
    notebook, it replaces ``%%px`` and ``%px`` by magics with the same options: see ``EngineRanks.run``.

    ``ranks.widget`` is the live view, for which a process beside the kernel collects numbers from the beginning on.
    ``live``: whether there is a view; by default, a notebook that can show it has one, and if this default view fails,
    the ranks train without it. ``record``: folder, new or empty, for the record; without it, the record of a view is
    removed with the ranks.

    Raises ``StartError`` if an engine does not answer within ``timeout_s``, because it may be busy; ``UsageError`` if
    engines have another version of Farandole, or are on several hosts and the client's connections are not encrypted.
    """
    engines = sorted(client.ids)
    if not engines:
        raise UsageError(
            "the client has no engines: start some, as by ipyparallel.Cluster(n=4).start_and_connect_sync()"
        )
    view = begin_view(live, os.fspath(record))
    try:
        reports = _call(client, engines, guard.report, timeout_s)
        if view is not None:
            view.await_ready()  # an error here leaves earlier ranks as they are
        _close_earlier(reports)
        seats = _seat(client, engines, reports, timeout_s, view)
    except BaseException:
        if view is not None:
            view.close()
        raise
    ranks = EngineRanks(client, seats, _replace, view)
    _attached.add(ranks)
    _register(ranks)
    return ranks


def _close_earlier(reports: Sequence[EngineReport]) -> None:
    """End the views of earlier ranks whose engines join the new job."""
    engines = {(report.host, report.pid) for report in reports}
    for ranks in list(_attached):
        if any((seat.report.host, seat.report.pid) in engines for seat in ranks.seats):
            ranks.close()


def _seat(
    client: Any,
    engines: Sequence[int],
    reports: Sequence[EngineReport],
    timeout_s: float,
    view: RanksView | None = None,
) -> list[EngineInSeat]:
    """Make a job of these engines: rank 0 starts the controller, each engine takes its seat, and the view follows."""
    hosts = [report.host for report in reports]
    _require_same_version(engines, reports)
    spans_hosts = len(set(hosts)) > 1
    if spans_hosts and not client.curve_serverkey:
        raise UsageError(f"the engines are on {len(set(hosts))} hosts, and {ENCRYPT}")
    is_elsewhere = view is not None and set(hosts) != {socket.gethostname()}
    if view is not None and is_elsewhere and not client.curve_serverkey:
        view.give_up(f"the engines are on another host than this notebook, and {ENCRYPT}")
        view = None
    job, size = secrets.token_hex(8), len(engines)
    contact: tuple[list[str], str] = ([], "")
    if size > 1 or view is not None:
        is_open = spans_hosts or is_elsewhere
        [contact] = _call(client, engines[:1], guard.start_controller, timeout_s, (job, size, is_open))
    local: Counter[str] = Counter()
    pending = []
    for rank, (engine, host) in enumerate(zip(engines, hosts, strict=True)):
        place = (rank, size, local[host])
        local[host] += 1
        pending.append(client[engine].apply_async(guard.take_seat, job, place, host, spans_hosts, contact))
    _await(pending, engines, timeout_s)
    if view is not None:
        view.follow(*contact)
    return [EngineInSeat(engine, report) for engine, report in zip(engines, reports, strict=True)]


def _replace(ranks: EngineRanks, setup: str, timeout_s: float) -> list[EngineInSeat]:
    """See ``EngineRanks.replace``."""
    client, seats, living = ranks.client, ranks.seats, ranks.living
    engines = [seat.engine for seat in seats]
    dead = [rank for rank in range(len(seats)) if rank not in living]
    new = _new_engines(client, engines, len(dead), timeout_s)
    for rank, engine in zip(dead, new, strict=True):
        engines[rank] = engine
    reports = _call(client, engines, guard.report, timeout_s)
    for engine in new:  # in a job of one engine, where init() and broadcasts need no other rank
        _seat(client, [engine], [reports[engines.index(engine)]], timeout_s)
        if setup:
            result = client[engine].execute(setup, silent=False, block=False)
            _await([result], [engine], timeout_s)
    seated = _seat(client, engines, reports, timeout_s, ranks.view)
    _call(client, new, guard.be_ready, timeout_s)
    return seated


def _new_engines(client: Any, known: Sequence[int], count: int, timeout_s: float) -> list[int]:
    """``count`` engines without a seat; starts engines if needed."""
    deadline_s = time.monotonic() + timeout_s
    missing = count - len([each for each in client.ids if each not in known])
    if missing > 0:
        if client.cluster is None:
            raise StartError(
                f"{missing} more engines are needed, and this client does not know how they are started: start them as "
                "the others (ipengine), then call ranks.replace() again"
            )
        client.cluster.start_engines_sync(n=missing)
    while len(new := [each for each in client.ids if each not in known]) < count:
        if time.monotonic() > deadline_s:
            raise StartError(f"{len(new)} of {count} new engines are there after {timeout_s:g} s: look at their logs")
        time.sleep(LOOK_S)  # the client's own thread registers new engines
    return sorted(new)[:count]


def _call(
    client: Any, engines: Sequence[int], function: Callable[..., Any], timeout_s: float, arguments: tuple[Any, ...] = ()
) -> list[Any]:
    """Call a function in each engine, as a task; returns the results."""
    return _await([client[each].apply_async(function, *arguments) for each in engines], engines, timeout_s)


def _await(results: Sequence[Any], engines: Sequence[int], timeout_s: float) -> list[Any]:
    deadline_s = time.monotonic() + timeout_s
    for result in results:
        result.wait(max(0.0, deadline_s - time.monotonic()))
    if silent := [engine for engine, result in zip(engines, results, strict=True) if not result.done()]:
        raise StartError(
            f"engines {silent} have not answered within {timeout_s:g} s: they are busy, perhaps with a cell of an "
            f"earlier kernel. Interrupt them, then try again: rc.send_signal('SIGINT', targets={silent})"
        )
    return [result.get() for result in results]


def _require_same_version(engines: Sequence[int], reports: Sequence[EngineReport]) -> None:
    if other := {engine: it.version for engine, it in zip(engines, reports, strict=True) if it.version != __version__}:
        said = ", ".join(f"engine {engine} has {version}" for engine, version in other.items())
        raise UsageError(f"this notebook has Farandole {__version__}, and {said}: install the same version")


def _register(ranks: EngineRanks) -> None:
    """Make the notebook send its ``%%px`` cells to these ranks, and end their view with the last engine."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        from farandole.notebook.magics import RankMagics  # needs IPython Parallel's own

        shell.register_magics(RankMagics(shell, ranks))
        if ranks.view is not None:
            shell.events.register("post_run_cell", _end_of(weakref.ref(ranks), shell))


def _end_of(reference: weakref.ref[EngineRanks], shell: Any) -> Callable[[object], None]:
    """Hook of the notebook that ends the view if a cell has stopped the engines: its picture is then saved."""

    def look(_: object) -> None:
        ranks = reference()
        if ranks is not None and not ranks.has_engines:
            ranks.close()
        if ranks is None or ranks.view is None or ranks.view.done:
            shell.events.unregister("post_run_cell", look)

    return look
