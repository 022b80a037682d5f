"""``run.json`` of a search: its arguments and versions; a search that is resumed must have the same arguments.

record = RunRecord.here(plan_values)
record.keep(folder / "run.json")
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, final

import msgspec

from farandole.control.private_file import write_private
from farandole.errors import UsageError
from farandole.monitor.describe import describe
from farandole.version import __version__

GROW = ("trials", "epochs")
"""Arguments of ``search`` that may be larger than before in the same folder."""


@final
class RunRecord(msgspec.Struct, frozen=True):
    """Record of a search: when, where and how it began, with which versions and seed, at which commit.

    ``asked``: the arguments that determine its trials. Of the environment it has only seeds, and no key. Fields that
    ``RunInfo`` has, too, have the same meaning: ``farandole runs`` reads both.
    """

    began_s: float
    command: list[str]
    folder: str
    host: str
    git: str
    versions: dict[str, str]
    seeds: dict[str, str]
    farandole: str
    asked: dict[str, Any]
    user: str = ""
    ended_s: float = 0.0
    status: int | None = None
    words: str = ""
    search: dict[str, int | bool] = {}

    @classmethod
    def here(cls, asked: dict[str, Any], search: dict[str, int | bool]) -> RunRecord:
        """The record of a search that begins now in this process; ``search`` is for its page."""
        info, seeds = describe(sys.argv), {"seed": str(asked.get("seed", ""))}
        return cls(
            info.began_s,
            info.command,
            info.folder,
            info.host,
            info.git,
            info.versions,
            info.seeds | seeds,
            __version__,
            asked,
            info.user,
            search=search,
        )

    def keep(self, path: Path) -> tuple[RunRecord, int]:
        """Write the record, or compare it with the record of a resumed search; ``UsageError`` names the difference.

        Versions may differ: a search is not lost because a package was installed. Trials and epochs may increase.
        Returns the record to use and, if they increase, the previous number of epochs of a whole training; else 0.
        """
        if path.exists():
            before = msgspec.json.decode(path.read_bytes(), type=RunRecord)
            mine = msgspec.json.decode(msgspec.json.encode(self.asked))
            if differing := _difference(before.asked, mine):
                raise UsageError(
                    f"{path.parent} holds a search with {differing}: ask the same, with as many "
                    f"{' and '.join(GROW)} or more, or give a new folder"
                )
            top = int(_flat(before.asked).get("epochs", 0)) if before.asked != mine else 0
            return msgspec.structs.replace(before, search=self.search, asked=self.asked), top
        self.write(path)
        return self, 0

    def write(self, path: Path, **changes: Any) -> None:
        """Write the record with these ``changes``."""
        write_private(path, msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(self, **changes))) + b"\n")


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Text on how the arguments of two searches differ; "" if they do not, or if only those in ``GROW`` increase.

    >>> _difference({"trials": 12}, {"trials": 6}), _difference({"trials": 12}, {"trials": 18})
    ('trials=12, and now it is 6', '')
    """
    then, mine = _flat(before), _flat(now)
    names = [name for name in {**then, **mine} if _text(then.get(name)) != _text(mine.get(name))]
    told = (
        f"{name}={_words(then.get(name))}, and now it is {_words(mine.get(name))}"
        for name in names
        if name not in GROW or mine[name] < then[name]
    )
    return "; ".join(told)


def _words(value: Any) -> str:
    """Text of a value, as a user writes it.

    >>> _words({"low": 0.1, "high": 1.0, "log": True, "step": 0.0, "whole": False}), _words(None), _words(["sgd"])
    ('0.1 to 1.0 (log)', 'not there', "['sgd']")
    """
    if not isinstance(value, dict):
        return "not there" if value is None else repr(value)
    low, high = (int(each) if value["whole"] else each for each in (value["low"], value["high"]))
    more = [*(["log"] if value["log"] else []), *([f"step {value['step']:g}"] if value["step"] else [])]
    return f"{low} to {high}" + (f" ({', '.join(more)})" if more else "")


def _flat(asked: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``search`` by name, and the space by hyper-parameter."""
    found = {name: value for name, value in asked.items() if name not in ("rungs", "space")}
    rungs, space = asked.get("rungs"), asked.get("space")
    if rungs is not None:
        found |= {"epochs": rungs["levels"][-1], "min_epochs": rungs["levels"][0], "reduction": rungs["reduction"]}
    if space is not None:
        for name, parameter in space["parameters"].items():
            found[f"space[{name!r}]"] = parameter.get("choices", parameter)
    return found


def _text(value: Any) -> str:
    """Text of an argument, different for values that Python takes for equal: 1 and true."""
    return json.dumps(value, sort_keys=True)
