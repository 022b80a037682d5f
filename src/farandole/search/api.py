"""``farandole.search``: hyper-parameters, by many trials on one pool of workers.

result = farandole.search(train, {"lr": {"low": 1e-4, "high": 1.0, "log": True}}, trials=32, pool=8, epochs=27)
result.best.parameters                                  # {"lr": 0.0123}

Live page of a search, and the end of the search in its record.

with recorded(record, folder / "run.json", study), shown_live(monitor_config(folder, live=True), addresses, secret):
    ...
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import Any, final

import cloudpickle
import msgspec

from farandole.cluster.contact import Contact
from farandole.control.addresses import everywhere, own_endpoints, own_host_only
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.monitor_messages import LOOPBACK, MonitorConfig
from farandole.control.process import exit_status
from farandole.errors import UsageError
from farandole.launch.command.watch_options import stays_s
from farandole.launch.job.monitor_process import MonitorProcess, say_where
from farandole.launch.providers.provider import Provider
from farandole.search.advisor import Advisor
from farandole.search.groups import SearchLimits
from farandole.search.lease_pool import LeasePool
from farandole.search.loop import SearchLoop
from farandole.search.resolve import PoolSource, advisor_of, check_limits, pool_of
from farandole.search.run_record import RunRecord
from farandole.search.rungs import Rungs
from farandole.search.space import Space, Value
from farandole.search.study import Study, StudyPlan, StudyTrial, to_reopen
from farandole.search.trial import Trial
from farandole.search.trial_metrics import by_name
from farandole.search.view import SearchView
from farandole.search.watch import SearchWatch
from farandole.settings import Settings

LINK = "live.link"


def monitor_config(
    folder: Path, *, live: bool, listen: str = "", certificate: str = "", stay_s: float = 0.0
) -> MonitorConfig | None:
    """Configuration of the requested page, if any; it stays for ``stay_s`` unless ``stays_s`` forbids it."""
    if not live:
        if listen or certificate:
            raise UsageError("live_listen and live_certificate are of a page: add live=True (--live)")
        return None
    where = str(folder.resolve())
    return MonitorConfig(
        where,
        list(sys.argv),
        live=True,
        listen=listen or LOOPBACK,
        certificate=os.path.abspath(certificate) if certificate else "",
        link_file=os.path.join(where, LINK),
        search=True,
        stay_s=stays_s(stay_s, listen, os.environ),
    )


@contextlib.contextmanager
def shown_live(config: MonitorConfig, addresses: Sequence[str], secret: str) -> Iterator[MonitorProcess]:
    """Context that serves the page, which may stay afterwards. The monitor watches the search like a job."""
    with MonitorProcess(config, set() if config.stay_s else None) as monitor:
        say_where(monitor.await_ready())
        monitor.contact(addresses, secret)
        try:
            yield monitor
        except BaseException as error:
            # Without a result the page would report a lost search; after an interrupt no page stays.
            monitor.result = exit_status(-SIGINT) if isinstance(error, KeyboardInterrupt) else 1, _words(error)
            raise


@contextlib.contextmanager
def recorded(record: RunRecord, path: Path, study: Study) -> Iterator[None]:
    """Record that the search runs and, at exit of the context, how it has ended."""
    record.write(path, status=None, ended_s=0.0, words="")
    try:
        yield
    except BaseException as error:
        record.write(path, status=1, ended_s=time.time(), words=_words(error))
        raise
    record.write(path, status=0, ended_s=time.time(), words=end_of(study))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def end_of(study: Study) -> str:
    """Text on the end of a search that is not over; "" if it is over."""
    return "" if study.is_over else "It is not over: the same call goes on."


DIRECTIONS = ("minimize", "maximize")


@final
class SearchedTrial(msgspec.Struct, frozen=True):
    """Trial of a search that is over: its ``phase`` is "complete", "pruned" (it was paused for good) or "failed".

    ``values``: by epoch. ``value``: the last of them. ``why``: why it failed or was stopped. ``metrics``: the other
    numbers that it has reported, by name; ``metrics["accuracy"]`` has one number for each epoch.
    """

    number: int
    parameters: dict[str, bool | int | float | str]
    seed: int
    phase: str
    value: float | None
    values: dict[int, float]
    why: str
    metrics: dict[str, dict[int, float]] = {}


@final
class SearchResult(msgspec.Struct, frozen=True):
    """Result of a search: its trials by number, the best of those that are complete, and its folder.

    ``is_over`` is false if the deadline came first: the same call with more time resumes the search. ``epochs``: number
    of epochs that all trials have trained.
    """

    trials: list[SearchedTrial]
    best: SearchedTrial | None
    is_over: bool
    folder: str
    epochs_of_all: int
    """Epochs that all trials would have trained without rungs."""

    @property
    def epochs(self) -> int:
        """Number of epochs that all trials together have trained."""
        return sum(max(trial.values, default=0) for trial in self.trials)


def search(
    fn: Callable[[Trial], Any],
    space: Space | Mapping[str, Any] | str | os.PathLike[str],
    trials: int = 32,
    workers: int | tuple[int, int] = (1, 4),
    pool: int | str | Provider | PoolSource | LeasePool = 1,
    *,
    epochs: int = 1,
    min_epochs: int = 1,
    reduction: int = 3,
    direction: str = "minimize",
    advisor: str | Advisor | Sequence[Mapping[str, Value]] = "tpe",
    seed: int = 0,
    deadline_s: float = math.inf,
    folder: str | os.PathLike[str] = "",
    progress: bool = True,
    hosts: str = "",
    live: bool = False,
    live_listen: str = "",
    live_certificate: str = "",
    **knobs: Any,
) -> SearchResult:
    """Call ``fn(trial)`` for many ``trials`` with hyper-parameters from ``space``, and return how they ended.

        def train(trial):
            for epoch in range(1, trial.epochs + 1):
                loss = ...                                  # with trial.parameters["lr"]
                trial.report(loss, epoch)

        result = farandole.search(train, {"lr": (1e-4, 1.0)}, trials=32, pool=8, epochs=27, folder="runs/lr")

    ``pool`` is the number of processes on this host, which are started once. Each trial gets some of them, between the
    two numbers of ``workers``, as ranks of an elastic job: ``fn`` needs only ``hvd.init()``, ``hvd.elastic.run`` and
    ``trial.resume(state)``. A trial trains ``min_epochs`` at first, and ``reduction`` times as many at each rung if it
    is among the best ``1/reduction`` there; else it pauses, and goes on if later trials are worse. Workers for which no
    trial waits go to the leading trials.

    ``advisor`` proposes hyper-parameters: "tpe", "random", "cbo" (DeepHyper's), a list of trials, or an ``Advisor`` of
    your own. The ``folder`` gets ``run.json``, ``trials.log`` (which ``optuna-dashboard`` reads), ``output/`` and
    ``checkpoints/``; the same call with the same folder resumes a search that was killed, and a call with more
    ``trials`` or ``epochs`` extends it. The default folder is ``farandole-search-`` and the time.
    With ``hosts="a:4,b:4"`` the pool has four processes on each host, over ssh; all hosts must share the folder. If
    a host dies, its trials lose the time since their last reports.
    With ``pool=ranks``, of ``farandole.notebook.attach``, the engines are the workers, and keep the objects of cells.
    With ``pool="leases"`` workers are on nodes that join and leave: any Slurm job joins by ``farandole join
    FOLDER/pool``; with ``pool=LeasePool("1x4@1h", max_np=16)`` the search has Slurm start such jobs, as many as its
    trials can use and the policy of leases allows. With ``live`` the search has a page, and prints its link as
    ``farandole run --live`` does; with ``live_stay_s=60`` the page stays for a minute after the search.
    ``space`` may also be a TOML file, ``direction`` "maximize". ``deadline_s``: seconds from now. ``knobs``: settings
    by name.

    Raises ``UsageError`` for invalid arguments, and ``ControlError`` if the workers cannot be started. A trial that
    raises has failed, and the search goes on. A ``KeyboardInterrupt`` ends the workers; the same call resumes it.
    """
    where = Path(folder or time.strftime("farandole-search-%Y%m%d-%H%M%S"))
    limits = (workers, workers) if isinstance(workers, int) else (int(workers[0]), int(workers[1]))
    plan = _plan(space, trials, Rungs.of(min_epochs, epochs, reduction), direction, seed)
    settings = Settings.resolve(arguments={**knobs, "min_np": limits[0], "max_np": limits[1]})
    proposing, method = advisor_of(advisor, plan)
    terms = SearchLimits(limits, _time(deadline_s), where.resolve(), cloudpickle.dumps(fn), settings)
    for each in (where, where / "output", where / "checkpoints"):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    # By default the page does not stay: the caller's process goes on, and would have an unexpected child process.
    stay_s = settings.live_stay_s if "live_stay_s" in knobs else 0.0
    page = monitor_config(where, live=live, listen=live_listen, certificate=live_certificate, stay_s=stay_s)
    provider = pool_of(pool, hosts, where.resolve(), settings)
    check_limits(limits, provider)
    asked = {"trials": trials, "rungs": plan.rungs, "direction": direction, "advisor": method, "seed": seed}
    shown: dict[str, int | bool] = {"trials": trials, "epochs": epochs, "minimize": plan.minimize}
    record = RunRecord.here({"space": plan.space, **asked}, shown)
    return _in_folder(
        where, record, plan, proposing, partial(_search, provider=provider, terms=terms, page=page, progress=progress)
    )


def _in_folder(
    where: Path, record: RunRecord, plan: StudyPlan, advisor: Advisor, run: Callable[[Study], None]
) -> SearchResult:
    """Begin or resume the search in a folder."""
    from farandole.search.trial_log import TrialLog  # Optuna is slow to load, and may not be installed

    with TrialLog(where / "trials.log", where.resolve().name, minimize=plan.minimize) as log:
        record, top = record.keep(where / "run.json")
        if top:
            log.reopen(to_reopen(log.trials(), top, plan.rungs.levels[-1]))
        study = Study(plan, log, advisor)
        if not study.rows:
            _set_aside(where / "checkpoints")
        if not study.is_over:
            with recorded(record, where / "run.json", study):
                run(study)
        study.close()
        return _result(study, where)


def _set_aside(folder: Path) -> None:
    """Move checkpoints aside that belong to no log, because the user has removed the log to begin anew."""
    if any(folder.iterdir()):
        folder.rename(folder.with_name(f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"))
        folder.mkdir(mode=0o700)


def _search(
    study: Study, provider: Provider, terms: SearchLimits, page: MonitorConfig | None, *, progress: bool
) -> None:
    """Run the trials that are left."""
    secret, reaches_out = new_secret(), provider.reaches_out
    with contextlib.ExitStack() as held:
        door = everywhere(terms.settings.ports) if reaches_out else own_host_only()
        router = held.enter_context(Router(JobKeys.from_secret(secret), door))
        held.enter_context(provider)
        loop = held.enter_context(SearchLoop(router, study, provider, terms))
        try:
            interface = terms.settings.network_interface
            addresses = own_endpoints(router.address, interface) if reaches_out else [router.address]
            loop.open(Contact(addresses, secret))
            view = held.enter_context(SearchView(study, loop.size, terms.folder, sys.stderr if progress else None))
            watch = held.enter_context(contextlib.closing(SearchWatch(study, terms.folder, router.send, time.time)))
            monitor = None if page is None else held.enter_context(shown_live(page, addresses, secret))
            with loop.follow(watch, view.show, -1 if monitor is None else monitor.pid):
                loop.run()
            study.close()
            watch.changed("", loop.size)
            if monitor is not None:
                monitor.result = 0, end_of(study)
        except BaseException:
            loop.abandon()  # the results of workers are no longer needed
            raise


def _plan(space: Any, trials: int, rungs: Rungs, direction: str, seed: int) -> StudyPlan:
    if trials < 1:
        raise UsageError(f"trials={trials}: give at least 1")
    if direction not in DIRECTIONS:
        raise UsageError(f"direction={direction!r}: use {' or '.join(DIRECTIONS)}")
    found = Space.read(space) if isinstance(space, str | os.PathLike) else Space.of(space)
    return StudyPlan(found, trials, rungs, direction == "minimize", seed)


def _time(deadline_s: float) -> float:
    if not deadline_s > 0:
        raise UsageError(f"deadline_s={deadline_s}: the seconds that the search may take")
    return deadline_s


def _result(study: Study, folder: Path) -> SearchResult:
    trials = [_searched(row) for row in study.rows]
    best = study.best
    return SearchResult(
        trials,
        None if best is None else trials[best.number],
        study.is_over,
        str(folder),
        study.plan.trials * study.plan.rungs.levels[-1],
    )


def _searched(row: StudyTrial) -> SearchedTrial:
    return SearchedTrial(
        row.number,
        dict(row.parameters),
        row.seed,
        row.phase,
        row.value,
        dict(sorted(row.values.items())),
        row.why,
        by_name(row.metrics),
    )
