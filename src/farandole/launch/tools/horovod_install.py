"""Installation of the package named ``horovod`` in an environment: ``farandole horovod install``, ``uninstall``.

It writes the files that a package manager would write: a metadata folder with a ``RECORD`` of every file, so that
``pip`` sees ``horovod`` as installed and ``pip uninstall horovod`` works; a ``.pth`` file with the path of Farandole's
package; and the command ``horovodrun``. The metadata folder is written last and removed first, each time atomically:
after an interrupt the next call completes or removes the files.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import final

import msgspec

from farandole.errors import UsageError
from farandole.launch.hosts.horovod_site import HOROVOD_SITE, METADATA, SPOKEN
from farandole.version import __version__

INSTALLER = "farandole"
FOLDER = f"horovod-{SPOKEN}.dist-info"
PTH = "horovod.pth"
COMMAND = "horovodrun"

_COMMAND = """\
#!/bin/sh
'''exec' "{python}" "$0" "$@" # written by: farandole horovod install
'''
import sys

from horovod.runner.launch import run_commandline

sys.exit(run_commandline())
"""


@final
class InstallScheme(msgspec.Struct, frozen=True):
    """Folders of an environment for packages and commands."""

    packages: str
    scripts: str

    def path(self, name: str) -> str:
        """Path of the file ``name``."""
        return os.path.join(self.scripts if name == COMMAND else self.packages, name)

    def installer(self) -> str:
        """Tool that installed ``horovod`` of this version; "?" if it is not recorded, "" if there is none."""
        with contextlib.suppress(OSError), open(os.path.join(self.path(FOLDER), "INSTALLER")) as file:
            return file.read().strip()
        return "?" if os.path.isdir(self.path(FOLDER)) else ""


def foreign() -> str:
    """Version and path of a ``horovod`` that is not Farandole's; "" if there is none."""
    for found in metadata.distributions(name="horovod"):
        own_site = str(found.locate_file("")) == HOROVOD_SITE
        if not own_site and (found.read_text("INSTALLER") or "").strip() != INSTALLER:
            return f"Horovod {found.version} in {found.locate_file('')}"
    spec = _spec()
    return f"a package horovod in {spec}" if spec and not _is_ours(spec) else ""


def is_active() -> bool:
    """True if ``import horovod`` imports Farandole in this process."""
    return _is_ours(_spec())


def install(scheme: InstallScheme) -> list[str]:
    """Write missing or outdated files; return their paths.

    Raises ``UsageError`` if a real Horovod is installed, or a folder is not writable.
    """
    if real := foreign():
        raise UsageError(
            f"{real} is installed, and stays as it is. Take it away first (pip uninstall horovod), "
            "or choose Farandole for each job: farandole run --horovod, FARANDOLE_HOROVOD=1"
        )
    files = _files(scheme)
    with _alone(scheme):
        _refuse_strange_files(scheme)
        changed = [
            scheme.path(name) for name, text in files.items() if _write(scheme.path(name), text, name == COMMAND)
        ]
        entries = _metadata(scheme, files)
        if changed or _read_folder(scheme.path(FOLDER)) != entries:
            _replace_folder(scheme, entries)
            changed.append(scheme.path(FOLDER))
    return changed


def uninstall(scheme: InstallScheme) -> list[str]:
    """Remove all files that ``install`` wrote, also after an interrupt; return their paths."""
    removed = []
    with _alone(scheme):
        if scheme.installer() == INSTALLER:
            with _aside(scheme) as aside:
                os.rename(scheme.path(FOLDER), os.path.join(aside, FOLDER))
            removed.append(scheme.path(FOLDER))
        for name in (PTH, COMMAND):
            if _is_own_file(scheme.path(name)):
                os.unlink(scheme.path(name))
                removed.append(scheme.path(name))
    return removed


def _files(scheme: InstallScheme) -> dict[str, str]:
    """Files outside of the metadata folder, by name."""
    site = HOROVOD_SITE
    if os.path.commonpath([site, os.path.abspath(scheme.packages)]) == os.path.abspath(scheme.packages):
        site = os.path.relpath(site, scheme.packages)  # relative: an environment may be moved
    return {PTH: f"# farandole horovod install\n{site}\n", COMMAND: _COMMAND.format(python=sys.executable)}


def _metadata(scheme: InstallScheme, files: dict[str, str]) -> dict[str, str]:
    """Files of the metadata folder."""
    with open(METADATA) as file:
        said = file.read()
    with contextlib.suppress(metadata.PackageNotFoundError):  # not installed: pip would search for it
        metadata.version("farandole")
        said += "Requires-Dist: farandole\n"
    generator = f"Generator: farandole {__version__}"
    entries = {
        "METADATA": said,
        "INSTALLER": f"{INSTALLER}\n",
        "WHEEL": f"Wheel-Version: 1.0\n{generator}\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "top_level.txt": "horovod\n",
        "entry_points.txt": f"[console_scripts]\n{COMMAND} = horovod.runner.launch:run_commandline\n",
        "REQUESTED": "",
    }
    rows = {os.path.relpath(scheme.path(name), scheme.packages): text for name, text in files.items()}
    rows |= {f"{FOLDER}/{name}": text for name, text in entries.items()}
    record = "".join(f"{name},{_digest(text)},{len(text.encode())}\n" for name, text in rows.items())
    return {**entries, "RECORD": f"{record}{FOLDER}/RECORD,,\n"}


def _digest(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


@contextlib.contextmanager
def _alone(scheme: InstallScheme) -> Iterator[None]:
    """Lock the environment against concurrent installs; translate ``OSError`` to ``UsageError``."""
    try:
        for folder in (scheme.packages, scheme.scripts):
            os.makedirs(folder, exist_ok=True)
        lock = os.open(scheme.packages, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # on the folder itself: no lock file stays, and the kernel releases it
            yield
        finally:
            os.close(lock)
    except OSError as error:
        raise UsageError(
            f"{error.filename or scheme.packages}: {error.strerror}. Where this environment cannot be changed, "
            "set FARANDOLE_HOROVOD=1 for a job, or install for yourself: farandole horovod install --user"
        ) from error


def _refuse_strange_files(scheme: InstallScheme) -> None:
    for name in (PTH, COMMAND):
        path = scheme.path(name)
        if os.path.lexists(path) and not _is_own_file(path):
            raise UsageError(f"{path} is there, and Farandole has not written it: move it away, and try again")


def _is_own_file(path: str) -> bool:
    try:
        with open(path) as file:
            return "farandole horovod install" in file.read()
    except (OSError, UnicodeDecodeError):
        return False


def _write(path: str, text: str, executable: bool) -> bool:
    """Write a file atomically, unless it already has this text."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path) as file:
        if file.read() == text:
            return False
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), prefix=".farandole-", delete=False) as file:
        try:
            file.write(text)
            os.fchmod(file.fileno(), 0o755 if executable else 0o644)
            file.flush()
            os.rename(file.name, path)
        except BaseException:  # also Ctrl-C: leave no temporary file
            os.unlink(file.name)
            raise
    return True


def _read_folder(path: str) -> dict[str, str]:
    found = {}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for name in os.listdir(path):
            with open(os.path.join(path, name)) as file:
                found[name] = file.read()
    return found


def _replace_folder(scheme: InstallScheme, entries: dict[str, str]) -> None:
    with _aside(scheme) as aside:
        new = os.path.join(aside, "new")
        os.mkdir(new)
        for name, text in entries.items():
            with open(os.path.join(new, name), "w") as file:
                file.write(text)
        if os.path.isdir(scheme.path(FOLDER)):
            os.rename(scheme.path(FOLDER), os.path.join(aside, "old"))
        os.rename(new, scheme.path(FOLDER))


@contextlib.contextmanager
def _aside(scheme: InstallScheme) -> Iterator[str]:
    """Temporary folder on the same file system that no package manager treats as a package."""
    path = tempfile.mkdtemp(prefix=".farandole-", dir=scheme.packages)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _spec() -> str:
    """Path that ``import horovod`` would load in this process, without importing it; "" if there is none."""
    found = find_spec("horovod")
    if found is None:
        return ""
    return found.origin or next(iter(found.submodule_search_locations or ()), "")


def _is_ours(origin: str) -> bool:
    return origin.startswith(HOROVOD_SITE + os.sep)
