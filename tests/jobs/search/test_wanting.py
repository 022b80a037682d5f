"""What a search wants of a provider that has no host of its own: told at once, as nothing happens before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, final

from farandole.cluster.contact import Contact
from farandole.control.addresses import own_host_only
from farandole.control.agent_messages import WorkerSpec
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.launch.providers.provider import Provider, ProviderEvent
from farandole.search.groups import SearchLimits
from farandole.search.loop import SearchLoop
from farandole.settings import Settings
from tests.support.patience import PATIENCE_S
from tests.unit.search.test_study import PLAN, make


@final
class Hostless(Provider):
    """Provider that offers no host; ``wanted`` are the slots that were wanted, and ``on_wanted`` is called then."""

    slots = {}  # noqa: RUF012 (nobody changes it)

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[int] = []
        self.on_wanted: Callable[[], object] = lambda: None

    def want(self, slots: int, busy: Collection[str]) -> None:
        self.wanted.append(slots)
        self.on_wanted()

    def open(self, contact: Contact, send: object) -> None: ...

    def start(self, host: str, workers: Sequence[WorkerSpec]) -> None: ...

    def kill(self, host: str, worker_id: int, number: int = 9) -> None: ...

    def close(self) -> None: ...

    def events(
        self, now: float, ready: Collection[int] = (), mail: Sequence[tuple[bytes, Any]] = ()
    ) -> list[ProviderEvent]:
        return self._told()


def test_a_search_without_hosts_says_at_once_how_many_workers_its_trials_could_use(tmp_path: Path) -> None:
    study, log = make(tmp_path)
    provider = Hostless()
    terms = SearchLimits((1, 4), PATIENCE_S, tmp_path, b"", Settings(min_np=1, max_np=4))
    with (
        log,
        Router(JobKeys.from_secret(new_secret()), own_host_only()) as router,
        SearchLoop(router, study, provider, terms) as loop,
    ):
        provider.on_wanted = loop.stop
        loop.open(Contact([], new_secret()))
        loop.run()
    assert provider.wanted[0] == 4 * PLAN.trials
    assert provider.wanted[-1] == 0, "a search that ends needs none"
