"""``%%px`` and ``%px`` that run cells on ranks; same options as IPython Parallel's.

shell.register_magics(RankMagics(shell, ranks))
"""

from __future__ import annotations

from typing import Any, final

from ipyparallel.client.asyncresult import AsyncResult
from ipyparallel.client.magics import ParallelMagics

from farandole.notebook.ranks import EngineRanks


@final
class RankMagics(ParallelMagics):
    """Magics of IPython Parallel that send their cells with ``EngineRanks``."""

    def __init__(self, shell: Any, ranks: EngineRanks) -> None:
        self._ranks = ranks
        super().__init__(shell, ranks.client.direct_view("all"))
        self.view.block = True

    def parallel_execute(
        self,
        cell: str,
        block: bool | None = None,
        groupby: str = "type",
        save_name: str | None = None,
        **_options: Any,
    ) -> Any:
        """Run a cell; with ``--noblock`` return its ``AsyncResult`` at once. Output is shown at once, by rank."""
        targets = self.view.targets
        engines = None if targets == "all" else [targets] if isinstance(targets, int) else list(targets)
        if self.view.block if block is None else block:
            self._save(save_name, self._ranks.run(cell, engines))
            return None
        return self._save(save_name, self._ranks.send(cell, engines))

    def _save(self, name: str | None, results: dict[int, Any]) -> Any:
        joined = AsyncResult.join(*results.values()) if len(results) > 1 else next(iter(results.values()))
        self.last_result = joined
        if name:
            self.shell.user_ns[name] = joined
        return joined
