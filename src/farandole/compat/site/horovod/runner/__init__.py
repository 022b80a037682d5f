"""``horovod.run``: call a function on several workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farandole.errors import UnsupportedError
from farandole.launch.agents.ssh import Ssh
from farandole.launch.command.horovodrun import without_meaning
from farandole.launch.function.function import run as run_function

_ELASTIC = {
    "min_num_proc": "min_np",
    "max_num_proc": "max_np",
    "min_np": "min_np",
    "max_np": "max_np",
    "host_discovery_script": "host_discovery_script",
}
"""Arguments that make a job elastic, with their Farandole settings."""
_OF_ELASTIC = {"slots": "slots_per_host", "reset_limit": "reset_limit", "cooldown_range": "blacklist_cooldown_range"}
"""Further arguments of elastic jobs, with their Farandole settings."""
_FLAGS = {
    "disable_cache": "--disable-cache",
    "use_gloo": "--gloo",
    "use_mpi": "--mpi",
    "mpi_args": "--mpi-args",
}
"""Arguments without effect, with the equivalent flags of ``horovodrun``."""


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    executable: str | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    **others: Any,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on ``num_proc`` workers; returns the list of results by rank.

        results = horovod.run(train, args=(3,), num_proc=2)

    Takes all of Horovod's arguments by name; see ``farandole.run`` for errors. With ``min_num_proc``, ``max_num_proc``
    or ``host_discovery_script`` the job is elastic, and the list has the results of the workers that finished.
    Arguments without effect are accepted, with a note on stderr.
    """
    _refuse(others, executable)
    for line in _without_effect(others):
        print(f"farandole: horovod.run: {line}", file=sys.stderr)
    return run_function(
        func, args, kwargs, np or num_proc, hosts=hosts or "", hostfile=hostfile or "",
        ssh=Ssh(ssh_port, ssh_identity_file or ""), start_timeout_s=start_timeout,
        network_interface=network_interface or network_interfaces, output_filename=output_filename or "",
        verbose=bool(verbose), horovod=True, **_elastic(others),
    )  # fmt: skip


def _refuse(others: Mapping[str, Any], executable: str | None) -> None:
    """Raise for arguments that Horovod does not have, and for unsupported ones."""
    unknown = [name for name in others if name not in (*_FLAGS, *_ELASTIC, *_OF_ELASTIC)]
    if unknown:
        raise TypeError(f"horovod.run() got unexpected arguments: {', '.join(unknown)}")
    if executable not in (None, sys.executable):
        raise UnsupportedError(f"executable={executable!r}: workers run the same Python as you, {sys.executable}")


def _elastic(others: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an elastic job, if arguments make the job elastic."""
    given = _given(others)
    names = {**_ELASTIC, **_OF_ELASTIC} if _ELASTIC.keys() & set(given) else {}
    return {names[name]: others[name] for name in given if name in names}


def _without_effect(others: Mapping[str, Any]) -> list[str]:
    """Notes about given arguments that have no effect, one line for each kind."""
    given = _given(others)
    of_elastic = [] if _ELASTIC.keys() & set(given) else [name for name in given if name in _OF_ELASTIC]
    idle = [f"{', '.join(of_elastic)}: accepted without effect, it belongs to elastic jobs"] * bool(of_elastic)
    return [*without_meaning([_FLAGS[name] for name in given if name in _FLAGS]), *idle]


def _given(others: Mapping[str, Any]) -> list[str]:
    return [name for name, value in others.items() if value not in (None, False)]
