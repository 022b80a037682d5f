"""The command ``farandole horovod``: install the package named ``horovod`` in this environment.

farandole horovod install        'import horovod' is Farandole, however a script is started
farandole horovod status         what it is now, and why
farandole horovod uninstall      as before
"""

from __future__ import annotations

import argparse
import importlib
import os
import site
import sys
import sysconfig

from farandole.errors import UsageError
from farandole.launch.tools import horovod_install
from farandole.launch.tools.horovod_install import INSTALLER, InstallScheme
from farandole.settings import Settings

DESCRIPTION = """\
Makes 'import horovod' import Farandole in this environment, however a script is
started: torchrun, srun, mpirun, pytest, a notebook, python. Package managers
then take horovod 0.28.1 for installed, and the command horovodrun exists.
An installed Horovod is never touched.

  farandole horovod install        do so
  farandole horovod status         print what it imports now; exit status 1: not Farandole
  farandole horovod uninstall      undo it (so does: pip uninstall horovod)

For one job: farandole run --horovod, or the variable FARANDOLE_HOROVOD=1.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``horovod`` to the commands."""
    parser = subparsers.add_parser(
        "horovod", help="let 'import horovod' mean Farandole in this environment", description=DESCRIPTION
    )
    parser.add_argument("action", choices=("install", "uninstall", "status"))
    parser.add_argument("--user", action="store_true", help="not in the environment, but in your user site folder")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Carry out the action of ``args``; return the exit status."""
    if args.action == "status":
        return _status()
    scheme = _scheme(args.user)
    if args.action == "install":
        changed = horovod_install.install(scheme)
        print("\n".join(f"wrote {path}" for path in changed) or f"it was installed already, in {scheme.packages}")
        importlib.invalidate_caches()
    else:
        removed = horovod_install.uninstall(scheme)
        print("\n".join(f"removed {path}" for path in removed) or f"nothing was installed in {scheme.packages}")
    return 0


def _scheme(user: bool) -> InstallScheme:
    """Folders of this Python's environment, or of the user's own packages."""
    if not user:
        return InstallScheme(sysconfig.get_path("purelib"), sysconfig.get_path("scripts"))
    if not site.ENABLE_USER_SITE:
        raise UsageError(
            f"--user: {sys.executable} does not look into your own folder (a virtual environment never does); "
            "leave --user out, or set FARANDOLE_HOROVOD=1"
        )
    return InstallScheme(site.getusersitepackages(), os.path.join(site.getuserbase(), "bin"))


def _status() -> int:
    active = horovod_install.is_active()
    print(f"'import horovod' means {'Farandole' if active else horovod_install.foreign() or 'nothing'} here")
    for user in (False, True):
        if user and not site.ENABLE_USER_SITE:
            continue
        scheme = _scheme(user)
        if scheme.installer() == INSTALLER:
            print(f"installed in {scheme.packages} (undo: farandole horovod uninstall{' --user' * user})")
    if Settings.resolve().horovod:
        print("the variable FARANDOLE_HOROVOD is set")
    elif not active:
        print("to change that: farandole horovod install; for one job: farandole run --horovod")
    return 0 if active else 1
