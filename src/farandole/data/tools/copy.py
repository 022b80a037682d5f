"""Copies of a folder on every host of a job, for scripts that open paths: ``farandole run --stage SRC=DST``.

    copy_to_hosts("/lustre/set", "/local/set", run="5f3a")          # on one rank of each host

The launcher runs this on every host before the script; a worker on a host that joined later runs it alone. A copy from
an earlier run is compared with the present files by size and time, once in each run.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import Any, final

from farandole.control.entry import entry_command
from farandole.data.formats.source import Source, made_once
from farandole.data.staging.mirror import ASIDE, aside_of
from farandole.data.staging.progress import await_staged
from farandole.data.staging.stage import links, stage
from farandole.data.storage.fields import Field
from farandole.data.storage.listing import list_files, root_of
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import MOST_BYTES
from farandole.errors import DataError, UsageError
from farandole.runtime.session.init import init, is_initialized, shutdown

MODULE = "farandole.data.tools.copy"
DONE = "done"
"""File below the folder of a copy that names the run for which the copy is complete."""


@final
class CopiedFiles(Source):
    """Files as they are, in parts of 64 MiB, so that no piece is larger: a copy needs no samples."""

    def sample(self, index: int) -> Any:
        return self.parts(index)[0]


def pair(text: str) -> tuple[str, str]:
    """Source and target of ``SRC=DST``, with variables expanded. Raises ``UsageError`` for another text."""
    source, equals, target = text.rpartition("=")
    if not (source and equals and target):
        raise UsageError(f"--stage {text}: write SRC=DST, as in --stage /lustre/set=$TMPDIR/set")
    target = os.path.expanduser(os.path.expandvars(target))
    if "$" in target:
        raise UsageError(f"--stage {text}: a variable of {target} is not set on this host")
    return os.path.expanduser(os.path.expandvars(source)), os.path.abspath(target)


def copy_to_hosts(source: str, target: str, run: str) -> None:
    """Copy the files below ``source`` to ``target`` on the hosts of all ranks; one host reads each byte.

    Raises ``DataError`` if a file cannot be read, or a foreign file has the name of a copy.
    """
    manifest = made_once(lambda: listed(source))
    root, goal = os.path.realpath(manifest.root), os.path.realpath(target)
    if os.path.isdir(source) and f"{goal}/".startswith(f"{root.rstrip('/')}/"):
        raise DataError(f"--stage {source}={target}: the copies would lie among what is copied; give another folder")
    aside_of(target)
    staged = stage(CopiedFiles(manifest), cache=str(Path(target) / ASIDE), mirror=target)
    await_staged(staged, title=f"{source} to {target}")
    (Path(target) / ASIDE / DONE).write_text(run)


def is_done(target: str, run: str) -> bool:
    """True if a complete copy exists, and this run has compared it with the present files."""
    done = Path(target) / ASIDE / DONE
    return done.exists() and done.read_text() == run


def command_after(run: str, stages: list[str], command: list[str]) -> list[str]:
    """A worker's command, preceded by a check of the copies, for a host that joined the job later."""
    return [*entry_command(MODULE), "then", run, *stages, "--", *command]


def main() -> None:
    """Entry point: ``all RUN SRC=DST ...`` on the hosts of a job, ``then RUN SRC=DST ... -- COMMAND`` in a worker."""
    verb, run, *rest = sys.argv[1:]
    stages, command = rest, list[str]()
    if "--" in rest:
        cut = rest.index("--")
        stages, command = rest[:cut], rest[cut + 1 :]
    try:
        if verb == "all":
            init()
            for each in stages:
                copy_to_hosts(*pair(each), run)
            shutdown()
            return
        for each in stages:
            _ensure(*pair(each), run)
    except (DataError, UsageError) as error:
        sys.exit(f"farandole: {error}")
    for link in list(links):
        link.close()  # ``exec`` runs no exit handlers, and the next run would wait for the stager
    os.execvp(command[0], command)  # noqa: S606 (that is what it is for)


def _ensure(source: str, target: str, run: str) -> None:
    """Copy what the other hosts had before this host joined; one worker of the host copies, the others wait."""
    if is_done(target, run):
        return
    with open(aside_of(target) / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_done(target, run) and not is_initialized():
            copy_to_hosts(source, target, run)


def listed(source: str, *, hidden: bool = True) -> Manifest:
    """Manifest of files in parts of 64 MiB, whatever their format."""
    entries = list_files(source, hidden=hidden)
    parts = [-(-entry.size // MOST_BYTES) for entry in entries]
    same = [MOST_BYTES] * len(entries)
    field = Field.regular(range(len(entries)), parts, [0] * len(entries), same, same)
    return Manifest.of("files", root_of(source), entries, [field])


if __name__ == "__main__":
    main()
