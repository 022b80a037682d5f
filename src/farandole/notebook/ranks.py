"""Ranks of a notebook: engines with a seat in one job, and the cells that are sent to them.

ranks = attach(rc)
ranks.run("train(3)")               # what %%px does: the output of all ranks, line by line; raises what one raised
ranks.replace()                     # a new engine in the seat of a dead one
ranks.widget                        # the live view, across cells
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from farandole.errors import RemoteError, UnsupportedError, UsageError
from farandole.notebook import guard
from farandole.notebook.cells import CellMark, title_of
from farandole.notebook.guard import EngineReport
from farandole.notebook.live_view import NO_VIEW, RanksView
from farandole.notebook.outcome import DIED, CellOutcome, first_cause, read
from farandole.notebook.output import RankLines

if TYPE_CHECKING:
    from farandole.notebook.engine_provider import EngineProvider

SHOW_S = 0.1
"""Interval at which output is shown: ten times a second is enough for eyes, and for a browser."""

FOLLOW_S = 3.0
"""Time for the other ranks to end after the first failure, before the failure is raised without them."""

LAST_S = 10.0
"""Time that the next cell waits for these ranks."""

OUTPUT_S = 1.0
"""Time to wait for the last output after a cell has ended."""

STOP_S = 12.0
"""Time until an interrupted cell returns to the notebook: the step, then the stacks of ranks that still run."""


@final
class EngineInSeat(NamedTuple):
    """One rank: the number of its engine in IPython Parallel, and the engine's report."""

    engine: int
    report: EngineReport


@final
class _Sent(NamedTuple):
    """Cell that was sent: its results, by rank."""

    serial: int
    results: dict[int, Any]

    @property
    def is_done(self) -> bool:
        return all(result.done() for result in self.results.values())


@final
class EngineRanks:
    """Ranks of a job, in the order of the numbers of their engines when they were attached."""

    def __init__(
        self,
        client: Any,
        seats: Sequence[EngineInSeat],
        reseat: Callable[[EngineRanks, str, float], Sequence[EngineInSeat]],
        view: RanksView | None = None,
    ) -> None:
        self._client, self._reseat, self._view = client, reseat, view
        self._seats = list(seats)
        self._serial = 0
        self._open: list[_Sent] = []

    def __len__(self) -> int:
        return len(self._seats)

    def __repr__(self) -> str:
        """Table of the ranks, for the notebook."""
        rows = [("rank", "engine", "process", "host", "cores", "GPUs", "")]
        living = set(self._client.ids)
        for rank, (engine, it) in enumerate(self._seats):
            said = "" if engine in living else "ended: ranks.replace()"
            rows.append((str(rank), str(engine), str(it.pid), it.host, str(it.cores), str(it.gpus), said))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines)

    @property
    def client(self) -> Any:
        """The client of IPython Parallel whose engines were attached."""
        return self._client

    @property
    def seats(self) -> list[EngineInSeat]:
        """The ranks, also those that have ended."""
        return list(self._seats)

    @property
    def living(self) -> list[int]:
        """Ranks whose engines are alive."""
        ids = set(self._client.ids)
        return [rank for rank, seat in enumerate(self._seats) if seat.engine in ids]

    @property
    def has_engines(self) -> bool:
        """True if some rank is alive, as far as the client knows, and its cluster, if it has one, has engines."""
        cluster = self._client.cluster
        return bool(self.living) and (cluster is None or bool(cluster.engines))

    @property
    def view(self) -> RanksView | None:
        """The live view and the record of the ranks; ``None`` if they have neither."""
        return self._view

    @property
    def widget(self) -> Any:
        """Live view of the ranks, for the notebook, across cells; ``UnsupportedError`` where there is none.

            ranks.widget

        It shows numbers of ``hvd.log``, optimizers and loaders of each rank, the cells, and their output. Its buttons
        pause a cell, resume it, ask for a checkpoint, or end it, after the same step on all ranks; they are refused
        while no cell runs. When the ranks have ended, by ``close`` or with their engines, a picture replaces the view.
        """
        if self._view is None:
            raise UnsupportedError(NO_VIEW)
        return self._view.widget

    def close(self) -> None:
        """End the live view and the record. The engines stay ranks, with their variables. Idempotent."""
        if self._view is not None:
            self._view.close()

    # -- cells --------------------------------------------------------------------------------------------------------

    def send(self, code: str, engines: Sequence[int] | None = None) -> dict[int, Any]:
        """Send a cell to all ranks, or to the ranks of these ``engines``; returns an ``AsyncResult`` for each rank."""
        living = self.living
        ranks = living if engines is None else [r for r in living if self._seats[r].engine in engines]
        if not ranks:
            raise UsageError(f"none of the engines {list(engines or ())} is a rank that lives:\n{self!r}")
        self._open = [sent for sent in self._open if not sent.is_done]
        self._serial += 1
        # The notebook knows how all cells up to ``settled`` have ended: if a later cell fails, this cell must not run.
        settled = min((sent.serial for sent in self._open), default=self._serial) - 1
        mark = CellMark(self._serial, settled, ranks, set(ranks) >= set(living))
        if self._view is not None:
            self._view.begins(self._serial, f"cell {self._serial}: {title_of(code)}")
        # One message per engine, not one for all: so each rank has an ``AsyncResult`` that ends by itself.
        results = {
            rank: self._client[self._seats[rank].engine].execute(code, silent=False, block=False, label=mark.label)
            for rank in ranks
        }
        self._open.append(_Sent(self._serial, results))
        if self._view is not None:
            self._view.follow_cell(self._serial, list(results.values()))
        return results

    def run(self, code: str, engines: Sequence[int] | None = None) -> dict[int, Any]:
        """Run a cell on all ranks, or on the ranks of these ``engines``; returns their ``AsyncResult``, by rank.

        Prints the output of the ranks, each line with its rank, at most ten times a second. Raises ``RemoteError`` of
        the rank that failed first, soon after the failure, also if an engine has died or has not run the cell. Ctrl-C,
        or the kernel's interrupt, ends the cell on all ranks after the same step, and raises ``KeyboardInterrupt``.
        """
        self._await_failed()
        results = self.send(code, engines)
        shown = _Shown(results, self._view)
        try:
            self._watch(results, shown)
        except KeyboardInterrupt:
            self._interrupt(results, shown)
            raise
        shown.last()
        self._raise_failure(results)
        return results

    def kill(self, rank: int) -> None:
        """Kill the engine of a rank that does not react to interrupts; ``replace`` starts another one."""
        self._client.send_signal(int(signal.SIGKILL), targets=[self._seats[rank].engine], block=False)

    def replace(self, setup: str = "", timeout_s: float = 60.0) -> None:
        """Start engines in the seats of dead engines, and make a new job of all; call it outside of ``%%px``.

            ranks.replace(setup='''
            from model import make
            model, optimizer, state = make()
            ''')

        A new engine gets no variables from its peers: ``setup`` runs on it alone, as in a job of one rank, and builds
        what earlier cells have built. The new engine gets the values from its peers in the next cell: a function with
        ``hvd.elastic.run`` does this by itself, for its state; else call ``hvd.broadcast_parameters`` and
        ``hvd.broadcast_optimizer_state`` with a ``root_rank`` that was not replaced, and make a new
        ``DistributedOptimizer``, on every rank. The other engines keep their processes and their variables.

        Engines without a seat are used first, so you may start them by hand; else the client's own cluster starts
        them. Raises ``StartError`` if they do not answer within ``timeout_s``, ``RemoteError`` if ``setup`` fails.
        """
        self._open.clear()
        self._seats = list(self._reseat(self, setup, timeout_s))
        self._serial = 0

    def search_pool(self) -> EngineProvider:
        """The living engines, as workers of a search: ``farandole.search(..., pool=ranks)`` calls this."""
        from farandole.notebook.engine_provider import EngineProvider  # cells do not need it

        engines = dict(self._seats[rank] for rank in self.living)
        if not engines:
            raise UsageError(f"pool=ranks: no engine of these lives:\n{self!r}")
        return EngineProvider(self._client, engines)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _watch(self, results: dict[int, Any], shown: _Shown) -> None:
        """Show output until all ranks have ended, or until ``FOLLOW_S`` after the failure of one rank.

        If an engine has died, the others may go on without it (``hvd.elastic.run``); if not, they end by themselves.
        """
        failed_s: list[float] = []

        def is_over() -> bool:
            shown.more()
            ended = {rank: read(result) for rank, result in results.items() if result.done()}
            shown.tell_deaths(ended)
            if not failed_s and any(it.is_failure and it.kind != DIED for it in ended.values()):
                failed_s.append(time.monotonic())
            return len(ended) == len(results) or (bool(failed_s) and time.monotonic() > failed_s[0] + FOLLOW_S)

        if self._view is not None:
            self._view.wait(is_over)  # the kernel's loop runs in it, so that buttons act while the cell runs
        while not is_over():
            _wait_for_one(results)

    def _interrupt(self, results: dict[int, Any], shown: _Shown) -> None:
        """Interrupt the ranks and wait until they have ended; a second Ctrl-C interrupts them once more."""
        until_s = time.monotonic() + STOP_S
        self._signal(results)
        # The guard of each engine turns the signal into "after this step", on which all ranks agree.
        while not all(result.done() for result in results.values()) and time.monotonic() < until_s:
            try:
                _wait_for_one(results)
                shown.more()
            except KeyboardInterrupt:
                self._signal(results)
        with contextlib.suppress(KeyboardInterrupt):
            shown.last()
        if busy := [rank for rank, result in results.items() if not result.done()]:
            which = ", ".join(map(str, busy))
            sys.stderr.write(f"still running: rank {which}. To end it, and lose what is in it: ranks.kill({busy[0]})\n")

    def _await_failed(self) -> None:
        """After a rank has failed, wait until the other ranks have failed, too, at their next collective.

        Then wait until all ranks know it: an engine drops requests while it clears its queue after a failed cell.
        """
        until_s, kinds = time.monotonic() + LAST_S, set[str]()
        for sent in self._open:
            if any(result.done() and read(result).is_failure for result in sent.results.values()):
                for result in sent.results.values():
                    result.wait(max(0.0, until_s - time.monotonic()))
                kinds |= {read(result).kind for result in sent.results.values() if result.done()}
        if kinds - {"", "KeyboardInterrupt"}:
            self._settle([])

    def _settle(self, busy: Sequence[int]) -> None:
        """Wait until all ranks know of a failure: the next cell must not use the session that the failure has ended."""
        idle = [self._seats[rank].engine for rank in self.living if rank not in busy]
        asked = [self._client[engine].apply_async(guard.settle) for engine in idle]
        until_s = time.monotonic() + FOLLOW_S
        for each in asked:
            each.wait(max(0.0, until_s - time.monotonic()))

    def _signal(self, results: dict[int, Any]) -> None:
        engines = [self._seats[rank].engine for rank, result in results.items() if not result.done()]
        self._client.send_signal(int(signal.SIGINT), targets=engines, block=False)

    def _raise_failure(self, results: dict[int, Any]) -> None:
        outcomes: dict[int, CellOutcome] = {rank: read(result) for rank, result in results.items() if result.done()}
        rank = first_cause(outcomes)
        if rank is None:
            return
        busy = [other for other, result in results.items() if not result.done()]
        if any(outcome.kind not in ("", "KeyboardInterrupt") for outcome in outcomes.values()):
            self._settle(busy)
        told = outcomes[rank]
        error = RemoteError(rank, self._seats[rank].report.host, told.summary, told.traceback)
        for other, outcome in outcomes.items():
            if other != rank and outcome.is_failure:
                error.add_note(f"rank {other}: {outcome.summary}") if hasattr(error, "add_note") else None
        for other in busy:
            sys.stderr.write(f"rank {other} still runs the cell: it ends at its next collective, or by an interrupt\n")
        raise error


def _wait_for_one(results: Mapping[int, Any]) -> None:
    """Wait up to ``SHOW_S`` for a rank that has not ended."""
    left = next((result for result in results.values() if not result.done()), None)
    if left is not None:
        left.wait(SHOW_S)


@final
class _Shown:
    """Output of a cell, and how much of it was shown."""

    def __init__(self, results: dict[int, Any], view: RanksView | None) -> None:
        self._results, self._view, self._dead = results, view, set[int]()
        self._next_s = 0.0
        streams = [("stdout", sys.stdout), ("stderr", sys.stderr)]
        self._lines = [(r, name, RankLines(name, r), file) for r in results for name, file in streams]

    def tell_deaths(self, ended: Mapping[int, CellOutcome]) -> None:
        """Print which engines have died, while other ranks go on."""
        for rank in {rank for rank, outcome in ended.items() if outcome.kind == DIED} - self._dead:
            self._dead.add(rank)
            sys.stderr.write(f"rank {rank}: {ended[rank].summary}\n")

    def more(self, is_over: bool = False) -> None:
        """Show new lines, unless lines were shown less than ``SHOW_S`` ago."""
        if not is_over and time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + SHOW_S
        for rank, name, lines, file in self._lines:
            if text := lines.new_lines(getattr(self._results[rank], name), is_over):
                file.write(text)
                file.flush()
                if self._view is not None:
                    self._view.shown(int(name == "stderr"), text)

    def last(self) -> None:
        """Wait for the last output, and show it; then tables and figures."""
        until_s = time.monotonic() + OUTPUT_S
        for result in self._results.values():
            if result.done():
                result.wait_for_output(max(0.0, until_s - time.monotonic()))
        self.more(is_over=True)
        for rank, data, metadata in self._rich():
            _display(rank, data, metadata)

    def _rich(self) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
        for rank, result in self._results.items():
            kept = result.metadata
            for output in [*kept["outputs"], *([kept["execute_result"]] if kept["execute_result"] else [])]:
                yield rank, output.get("data", {}), output.get("metadata", {})


def _display(rank: int, data: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Show displayed data of a rank: as text with the rank before it, or in a form that the notebook can draw."""
    if set(data) <= {"text/plain"}:
        sys.stdout.write(RankLines("output", rank).new_lines(str(data.get("text/plain", "")), is_over=True))
        return
    from IPython.display import publish_display_data  # notebooks have it

    sys.stdout.write(f"[output:{rank}]\n")
    publish_display_data(data, metadata)  # type: ignore[no-untyped-call]
