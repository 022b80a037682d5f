"""Log of the trials of a search, in the format of Optuna's journal: ``trials.log``.

    with TrialLog(folder / "trials.log", "digits", minimize=True) as log:
        number = log.begin({"lr": 0.1}, space, seed=12345)
        log.report(number, epoch=1, value=0.3, metrics={"accuracy": 0.5})
        log.finish(number, "complete", 0.3)
        log.trials()                                        # those of earlier searches in this folder, too

``optuna-dashboard trials.log`` shows it, also while the search runs. Optuna's own file backend allows many writers; if
a writer dies in the middle of a line, no reader can read the file any more. This log has one writer, which holds a
``WriterLock`` on the file and cuts off a partial line when it opens the file: one entry is lost, and the search repeats
it. Each entry is one ``write``, so the death of the process loses no entry; after a power failure the last entry may be
missing.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, final

import msgspec
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from farandole.control.writer_lock import WriterLock
from farandole.errors import ControlError, UsageError
from farandole.events import logger
from farandole.search.advisor import Phase
from farandole.search.optuna_advisor import distribution, quiet
from farandole.search.space import Space, Value

SEED, GOAL, WHY, AGAIN, STOPPED = "seed", "goal", "why", "again", "stopped"
"""Attributes of a trial: its seed, the epoch up to which it may train, why it failed or was stopped, the number of
the trial that it repeats, and why it must leave its workers and end."""

PHASES: dict[TrialState, Phase] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
METRICS = "metrics "
"""Prefix of the attributes for the metrics of an epoch; the epoch follows it. Dashboards do not list them."""

_SET_STATE, _STATE = 6, b'"state":'
"""Code of Optuna's entries that set the state of a trial, and the text before the state, which is one digit."""

STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


@final
class LoggedTrial(msgspec.Struct, frozen=True):
    """Trial in the log. ``goal``: epoch up to which it may train. ``values``: by epoch.

    ``again``: number of the trial that it repeats, -1 for a planned trial. ``stopped``: why a trial that has not ended
    must end. ``metrics``: by epoch and name.
    """

    number: int
    parameters: dict[str, bool | int | float | str]
    seed: int
    goal: int
    values: dict[int, float]
    phase: Phase
    why: str = ""
    again: int = -1
    stopped: str = ""
    metrics: dict[int, dict[str, float]] = {}


@final
class TrialLog:
    """Log in the file ``path``, created if needed. Raises ``UsageError`` if another process has it open."""

    def __init__(self, path: Path, name: str, *, minimize: bool) -> None:
        self._backend = _OneWriter(path)
        try:
            with quiet():
                self._storage = JournalStorage(self._backend)
                self._study = self._open(path, name, minimize=minimize)
        except BaseException:
            self._backend.close()
            raise

    def begin(self, parameters: Mapping[str, Value], space: Space, seed: int, goal: int, again: int = -1) -> int:
        """Log that a trial begins, which may repeat the trial ``again``, and return its number; one entry."""
        template = create_trial(
            state=TrialState.RUNNING,
            params=dict(parameters),
            distributions={name: distribution(each) for name, each in space.parameters.items()},
            user_attrs={SEED: seed, GOAL: goal} | ({AGAIN: again} if again >= 0 else {}),
        )
        return self._storage.get_trial(self._storage.create_new_trial(self._study, template)).number

    def report(self, number: int, epoch: int, value: float, metrics: Mapping[str, float] | None = None) -> None:
        """Log the value of a trial after ``epoch``; a repeated value replaces the earlier value.

        Metrics are written first, so that the log has all metrics of an epoch for which it has the value.
        """
        if metrics:
            self._storage.set_trial_system_attr(self._id(number), f"{METRICS}{epoch}", dict(metrics))
        self._storage.set_trial_intermediate_value(self._id(number), epoch, value)

    def go_on(self, number: int, goal: int) -> None:
        """Log that a trial may train until it has done ``goal`` epochs."""
        self._storage.set_trial_user_attr(self._id(number), GOAL, goal)

    def stop(self, number: int, why: str) -> None:
        """Log that a trial must leave its workers and then end."""
        self._storage.set_trial_user_attr(self._id(number), STOPPED, why)

    def finish(self, number: int, phase: str, value: float | None = None, why: str = "") -> None:
        """Log the end of a trial: "complete", "pruned" or "failed". A value that is no number is a failure."""
        if phase == "complete" and (value is None or not math.isfinite(value)):
            phase, why = "failed", why or f"its value is {value}"
        if why:
            self._storage.set_trial_user_attr(self._id(number), WHY, why)
        values = [value] if value is not None and phase != "failed" and math.isfinite(value) else None
        self._storage.set_trial_state_values(self._id(number), STATES[phase], values)

    def reopen(self, numbers: Collection[int]) -> None:
        """Undo the end of these trials, because more epochs are asked for; their state is that before their end.

        Optuna's journal has no entry for this, so the entries of their ends are changed: a process that opens the file
        afterwards reads that these trials run.
        """
        self._backend.take_back({self._id(number) for number in numbers})
        self._storage = JournalStorage(self._backend)

    def trials(self) -> list[LoggedTrial]:
        """All trials, by number."""
        return [_logged(each) for each in self._storage.get_all_trials(self._study, deepcopy=False)]

    def close(self) -> None:
        """Free the file for another search. Idempotent."""
        self._backend.close()

    def __enter__(self) -> TrialLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, path: Path, name: str, *, minimize: bool) -> int:
        wanted = StudyDirection.MINIMIZE if minimize else StudyDirection.MAXIMIZE
        studies = self._storage.get_all_studies()
        if not studies:
            return self._storage.create_new_study([wanted], name)
        if list(studies[0].directions) != [wanted]:
            other = "maximize" if minimize else "minimize"
            raise UsageError(f"{path} is of a search that is to {other}: say direction={other!r}, or give a new folder")
        return studies[0]._study_id

    def _id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study, number)


def _logged(trial: FrozenTrial) -> LoggedTrial:
    attributes = trial.user_attrs
    return LoggedTrial(
        trial.number,
        dict(trial.params),
        int(attributes.get(SEED, 0)),
        int(attributes.get(GOAL, 0)),
        dict(trial.intermediate_values),
        PHASES[trial.state],
        str(attributes.get(WHY, "")),
        int(attributes.get(AGAIN, -1)),
        "" if trial.state.is_finished() else str(attributes.get(STOPPED, "")),
        {
            epoch: {str(name): float(value) for name, value in trial.system_attrs[f"{METRICS}{epoch}"].items()}
            for epoch in sorted(trial.intermediate_values)
            if f"{METRICS}{epoch}" in trial.system_attrs
        },
    )


@final
class _OneWriter(BaseJournalBackend):
    """File with one line per entry, and its content in memory: no other process writes to it."""

    def __init__(self, path: Path) -> None:
        self._lock: WriterLock | None = None
        # Append mode: if two processes have the file open after all, no entry overwrites another.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._lock = _lock(self._fd, path)
            self._entries = _read(self._fd, path)
        except BaseException:
            self.close()
            raise

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """See Optuna."""
        return self._entries[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """See Optuna."""
        lines = [json.dumps(entry, separators=(",", ":")) for entry in logs]
        data = "".join(f"{line}\n" for line in lines).encode()
        written = os.write(self._fd, data)
        if written < len(data):  # the disk is full: half an entry must not stay before the next entry
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise ControlError(f"the log of trials cannot be written: {written} of {len(data)} bytes fit on the disk")
        self._entries.extend(json.loads(line) for line in lines)  # as a reader finds them: enums are numbers there

    def take_back(self, ids: Collection[int]) -> None:
        """Change entries that end these trials into entries that set them running, which change nothing.

        Only one byte of each entry is changed, so that a crash leaves whole entries.
        """
        at, flags = 0, fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_APPEND)  # else Linux ignores the offset of pwrite
        try:
            lines = os.pread(self._fd, os.fstat(self._fd).st_size, 0).splitlines(keepends=True)
            for line, entry in zip(lines, self._entries, strict=True):
                if entry["op_code"] == _SET_STATE and entry["trial_id"] in ids:
                    os.pwrite(self._fd, b"%d" % TrialState.RUNNING, at + line.index(_STATE) + len(_STATE))
                    entry["state"] = int(TrialState.RUNNING)
                at += len(line)
            os.fsync(self._fd)  # before run.json records the larger request
        finally:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags)

    def close(self) -> None:
        """Close the file, which frees the lock."""
        if self._lock is not None:
            self._lock.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _lock(fd: int, path: Path) -> WriterLock:
    try:
        return WriterLock(fd, path)
    except BlockingIOError as error:
        text = f"another search writes to {path}: wait for its end, or give another folder ({error.strerror})"
        raise UsageError(text) from error
    except OSError as error:
        raise ControlError(f"{path} cannot be kept from other searches: {error}") from error


def _read(fd: int, path: Path) -> list[dict[str, Any]]:
    """Entries of the file, which is cut after the last whole entry. Raises ``ControlError`` for damage before it."""
    size = os.fstat(fd).st_size
    data = os.pread(fd, size, 0)
    entries: list[dict[str, Any]] = []
    end = 0
    for line in data.splitlines(keepends=True):
        entry = _entry(line)
        if entry is None:
            break
        entries.append(entry)
        end += len(line)
    rest = data[end:]
    if b"\n" in rest.rstrip(b"\n\0 "):
        raise ControlError(
            f"{path} is damaged in line {len(entries) + 1}, and whole entries follow: is it another file?"
        )
    if rest:
        logger.warning("%s: an entry that is not whole is cut off (%d bytes)", path, len(rest))
        os.ftruncate(fd, end)
    return entries


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "op_code" in entry else None
