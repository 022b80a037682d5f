"""``farandole.launch``: a function on N workers while the notebook, or the program, goes on, with its live view.

job = farandole.launch(train, np=2)        # returns at once
job.widget                                 # the live view, in the notebook
job.resize(4)                              # for functions of ``hvd.elastic.run``
job.result()                               # waits; what ``farandole.run`` would have returned
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.errors import UsageError
from farandole.launch.agents.ssh import Ssh
from farandole.launch.function.elastic_function import JobRequest
from farandole.launch.function.function import function_job, packed
from farandole.launch.function.launched_function import LaunchedFunction, ViewPlan
from farandole.monitor.folder import INFO

NEEDED = ("anywidget", "matplotlib", "tornado")


def launch(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    *,
    env: Mapping[str, str] | None = None,
    python_path: Sequence[str] = (),
    live: bool | None = None,
    record: str | os.PathLike[str] = "",
    **knobs: Any,
) -> LaunchedFunction:
    """Call ``func(*args, **kwargs)`` on ``np`` new workers of this host, and return at once.

        job = farandole.launch(train, kwargs={"lr": 0.1}, np=2)
        job.widget
        job.result()

    Arguments are those of ``farandole.run``. The job is elastic: ``resize`` changes its workers if ``func`` trains with
    ``hvd.elastic.run``. Output of workers is printed by this process.

    ``widget`` is its live view, for which a process beside the launcher collects numbers from the beginning on.
    ``live``: whether there is a view; by default, a notebook that can show it has one, and if this default view fails,
    the training goes on without it. ``record``: folder, new or empty, for the record of the run, with a view or
    without; without this folder, the record of a view is removed with the job.
    """
    if np < 1:
        raise UsageError(f"np={np} asks for no worker; it must be at least 1")
    if live and (lacking := missing()):
        raise UsageError(f"a live view needs {lacking}, which is not here: pip install 'farandole[notebook]'")
    if record and Path(record, INFO).exists():
        raise UsageError(f"{record} has the record of another run: give a folder that is new, or empty")
    watch, is_shown = None, live or (live is None and can_show())
    if is_shown or record:
        name = getattr(func, "__qualname__", "training")
        folder = os.path.abspath(record) if record else ""
        watch = ViewPlan(_widget if is_shown else None, folder, name, is_optional=not (live or record))
    job = function_job(env, python_path, {"min_np": 1, **knobs})
    task = packed(func, args, kwargs)
    return LaunchedFunction(JobRequest(job, None, "", "", Ssh(), is_local=True), task, np, watch)


def _widget(job: LaunchedFunction) -> Any:
    from farandole.monitor.widget import LiveWidget  # notebooks have what it needs

    return LiveWidget(job)


def can_show() -> bool:
    """True in the kernel of a notebook with all packages that the live view needs."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None and not missing()


def missing() -> str:
    """Names of the packages that the live view needs and that are not installed here; "" if all are."""
    return " and ".join(name for name in NEEDED if importlib.util.find_spec(name) is None)
