"""Packages for the environment of a checkout: by uv, if it is available and finds what pip would find, else by pip.

    .venv/bin/python -m workbench.install --extras torch,dev tensorflow-cpu      # the Makefile does this
    UV=none make setup                                                          # by pip, which takes longer

uv ignores pip's configuration, and of two indexes only one may have the torch without CUDA. So this translates the
configuration into options of uv; if that is impossible, pip installs. It runs before anything is installed.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ["-c", str(ROOT / "constraints.txt")]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]

TRANSLATED = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
"""Options of pip that determine what it finds, and their names in uv."""
VARIABLES = {"cert": "SSL_CERT_FILE", "default-timeout": "UV_HTTP_TIMEOUT", "timeout": "UV_HTTP_TIMEOUT"}
"""Options of pip that determine how it connects, and the variables that uv reads."""
HARMLESS = {
    "break-system-packages", "cache-dir", "config-file", "disable-pip-version-check", "no-cache-dir", "no-color",
    "no-input", "no-warn-script-location", "progress-bar", "quiet", "require-virtualenv", "retries", "root-user-action",
    "verbose",
}  # fmt: skip
"""Options of pip that change neither."""


def read_project() -> dict[str, Any]:
    """The table ``project`` of ``pyproject.toml``."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def requirements(project: Mapping[str, Any], extras: Sequence[str]) -> list[str]:
    """Requirements of the table ``project`` of ``pyproject.toml``, with those of these extras.

    >>> requirements({"dependencies": ["rich"], "optional-dependencies": {"plot": ["matplotlib"]}}, ["plot"])
    ['rich', 'matplotlib']
    """
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


def pip_settings(listed: str) -> dict[str, str]:
    r"""Settings of ``pip install``, from the output of ``pip config list``.

    >>> pip_settings("global.timeout='60'\ninstall.no-index='true'\n:env:.timeout='9'\ndownload.pre='yes'")
    {'timeout': '9', 'no-index': 'true'}
    """
    settings: dict[str, str] = {}
    lines = [line.partition("=") for line in listed.splitlines()]
    for section in ("global.", "install.", ":env:."):  # later ones replace
        found = {key.removeprefix(section): value for key, _, value in lines if key.startswith(section)}
        settings |= {name: str(ast.literal_eval(value)) for name, value in found.items()}
    return settings


def uv_options(settings: Mapping[str, str]) -> tuple[list[str], str]:
    """Options with which uv finds what pip finds with ``settings``; or the reason why pip must install.

    >>> uv_options({"extra-index-url": "https://a https://b", "timeout": "60"})
    (['--index-strategy', 'unsafe-best-match', '--index', 'https://a', '--index', 'https://b'], '')
    >>> uv_options({"proxy": "http://c"})
    ([], "pip is configured with 'proxy', which uv is not told")
    """
    options = ["--index-strategy", "unsafe-best-match"]  # like pip: the best version of all indexes
    for name, value in settings.items():
        if name in TRANSLATED:
            options += [word for each in value.split() for word in (TRANSLATED[name], each)]
        elif name == "no-index" and value.lower() in ("1", "true", "yes", "on"):
            options.append("--no-index")
        elif name not in {"no-index", *VARIABLES, *HARMLESS}:
            return [], f"pip is configured with {name!r}, which uv is not told"
    return options, ""


def main(args: Sequence[str] | None = None) -> int:
    """Install what ``args`` ask for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", default="", help="extras of pyproject.toml, with commas between them")
    parser.add_argument("--compile", action="store_true", help="have bytecode of all packages")
    parser.add_argument("packages", nargs="*", help="more packages")
    asked = parser.parse_args(args)
    packages = [*requirements(read_project(), [extra for extra in asked.extras.split(",") if extra]), *asked.packages]
    if reason := _install_by_uv(packages):
        print(f"pip installs, which takes longer: {reason}", flush=True)
        done = subprocess.run([*PIP, "install", "-qq", *CONSTRAINTS, *packages], check=False)
        if done.returncode:
            return done.returncode
    if asked.compile:  # uv skips packages that it installed before; a file that cannot be compiled is never imported
        words = [sys.executable, "-m", "compileall", "-qq", "-j", "0", sysconfig.get_path("purelib")]
        subprocess.run(words, check=False)
    return 0


def _install_by_uv(packages: Sequence[str]) -> str:
    """The reason why uv could not install; "" if it did."""
    if os.environ.get("UV") == "none":
        return "UV=none"
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    settings = pip_settings(listed)
    options, reason = uv_options(settings)
    if reason:
        return reason
    uv = Path(sysconfig.get_path("scripts"), "uv")
    if not uv.exists():
        subprocess.run([*PIP, "install", "-qqq", *CONSTRAINTS, "uv"], stderr=subprocess.DEVNULL, check=False)
    words = [str(uv), "pip", "install", "-q", "--python", sys.executable, *CONSTRAINTS, *options, *packages]
    variables = {VARIABLES[name]: value for name, value in settings.items() if name in VARIABLES}
    try:
        done = subprocess.run(words, env={**variables, **os.environ}, check=False)
    except OSError as error:
        return f"uv cannot be had ({error.strerror})"
    return f"uv ended with exit code {done.returncode}" if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
