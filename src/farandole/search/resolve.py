"""Advisor and provider of workers of a search, from the arguments of the user.

advisor, name = advisor_of("tpe", plan)                 # the name stands in run.json
provider = pool_of(8, "", folder, settings)             # 8 processes on this host
check_limits((1, 4), provider)
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from farandole.errors import UsageError
from farandole.launch.providers.provider import Provider, own_path
from farandole.search.advisor import Advisor, FixedList
from farandole.search.lease_pool import LEASES_FOLDER, LeasePool
from farandole.search.study import StudyPlan
from farandole.settings import Settings

CBO = "cbo"
"""Name of the advisor of DeepHyper."""

LEASES = "leases"
"""Name of the pool of nodes that jobs of a scheduler lend."""


@runtime_checkable
class PoolSource(Protocol):
    """Object that has workers for a search, such as the engines that ``farandole.notebook.attach`` has made ranks."""

    def search_pool(self) -> Provider:
        """Provider of the current workers."""
        ...


def advisor_of(told: Any, plan: StudyPlan) -> tuple[Advisor, str]:
    """The advisor, and its name in ``run.json``."""
    if isinstance(told, Advisor):
        return told, type(told).__name__
    if not isinstance(told, str):
        listed = FixedList(told)
        listed.check(plan.space)
        return listed, "list"
    _require_optuna()
    if told == CBO:
        _require_deephyper()
        from farandole.search.deephyper_advisor import DeepHyperAdvisor

        return DeepHyperAdvisor(plan.space, plan.seed), told
    from farandole.search.optuna_advisor import OptunaAdvisor

    return OptunaAdvisor(plan.space, told, plan.seed), told


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise UsageError("a search needs Optuna 5: type pip install 'farandole[search]'") from error


def _require_deephyper() -> None:
    if importlib.util.find_spec("deephyper") is None:  # which takes seconds to import
        raise UsageError(f"advisor={CBO!r} is DeepHyper's: type pip install 'farandole[deephyper]'")


def pool_of(
    told: int | str | Provider | PoolSource | LeasePool, hosts: str, folder: Path, settings: Settings
) -> Provider:
    """The provider for the arguments ``pool`` and ``hosts``; output of its workers goes to a file in ``folder``."""
    output = folder / "output" / "workers.txt"
    if hosts:
        if told != 1:
            raise UsageError(f"hosts={hosts!r} is a pool: leave out pool={told!r}")
        from farandole.launch.providers.hosts import HostProvider  # most searches are on this host

        return HostProvider(hosts, output, own_path(), settings)
    if isinstance(told, LeasePool):
        return told.provider(folder / LEASES_FOLDER, output, settings)
    if isinstance(told, str):
        if told != LEASES:
            raise UsageError(f"pool={told!r}: give a number of workers, {LEASES!r}, or ranks of a notebook")
        from farandole.launch.providers.leases import LeaseProvider

        return LeaseProvider(folder / LEASES_FOLDER, output, own_path(), settings)
    if isinstance(told, int):
        if told < 1:
            raise UsageError(f"pool={told} has no worker; give at least 1")
        from farandole.launch.providers.local import LocalProvider

        return LocalProvider(told, output, own_path())
    return told if isinstance(told, Provider) else told.search_pool()


def check_limits(limits: tuple[int, int], provider: Provider) -> None:
    """Raise ``UsageError`` if no trial can have as many workers as ``limits`` say."""
    (least, most), size = limits, sum(provider.slots.values())
    if not 1 <= least <= most:
        raise UsageError(f"workers=({least}, {most}): the fewest and the most of one trial, from 1 on")
    if least > size and provider.slots:
        raise UsageError(f"workers=({least}, {most}) and pool={size}: no trial can have as few as {least} of {size}")
