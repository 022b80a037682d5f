"""``run.json`` of a search: what was asked, and with which versions; a search that goes on must be asked the same.

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


@final
class RunRecord(msgspec.Struct, frozen=True):
    """Record of a search: when, where and how it began, with which versions and seed, at which commit.

    ``asked`` is what decides its trials. Of the environment only seeds stand there, and no key. The fields that a
    ``RunInfo`` has are as there: ``farandole runs`` reads both.
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

    def keep(self, path: Path) -> RunRecord:
        """Write the record, or compare it with that of the search that is to go on; ``UsageError`` says what differs.

        Versions may differ: a search is not lost because something was installed. Returns the record that counts.
        """
        if path.exists():
            before = msgspec.json.decode(path.read_bytes(), type=RunRecord)
            mine = msgspec.json.decode(msgspec.json.encode(self.asked))
            names = [
                name for name in {**before.asked, **mine} if _text(before.asked.get(name)) != _text(mine.get(name))
            ]
            if names:
                name = names[0]
                raise UsageError(
                    f"{path.parent} holds a search with {name}={before.asked.get(name)!r}, and now it is "
                    f"{mine.get(name)!r}: ask the same, or give a new folder"
                )
            return msgspec.structs.replace(before, search=self.search)
        self.write(path)
        return self

    def write(self, path: Path, **changes: Any) -> None:
        """Write the record with these ``changes``."""
        write_private(path, msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(self, **changes))) + b"\n")


def _text(value: Any) -> str:
    """Text of something asked, which tells apart what is equal: 1 and true."""
    return json.dumps(value, sort_keys=True)
