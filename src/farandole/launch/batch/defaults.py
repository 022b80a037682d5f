"""Defaults of batch scripts: merged from site, user and command line.

    # /etc/farandole/submit.toml, ~/.config/farandole/submit.toml
    partition = "gpu"
    account = "project42"
    modules = ["CUDA/12.4", "Python/3.11"]
    setup = ["source ~/venv/bin/activate"]

    [environment]
    NCCL_SOCKET_IFNAME = "ib0"

Later sources override earlier ones: the user's file overrides the site's, an option overrides both. Lists and variables
are combined, the site's first.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from farandole.errors import SettingsError
from farandole.launch.command.options import read_file
from farandole.launch.sbatch.options import BatchOptions

SITE = Path("/etc/farandole/submit.toml")
KEYS = BatchOptions.__struct_encode_fields__


def files(variables: Mapping[str, str]) -> list[Path]:
    """Existing files of defaults, the site's first."""
    home = variables.get("XDG_CONFIG_HOME") or str(Path(variables.get("HOME") or "~").expanduser() / ".config")
    return [path for path in (SITE, Path(home) / "farandole" / "submit.toml") if path.is_file()]


def with_defaults(asked: Mapping[str, Any], paths: Sequence[Path]) -> BatchOptions:
    """The options ``asked``, over the defaults of files; raises ``SettingsError`` for a file with other keys."""
    layers = [(f"the file {path}", _known(path, read_file(str(path)))) for path in paths]
    merged: dict[str, Any] = {}
    for source, layer in [*layers, ("the command line", asked)]:
        _check(source, layer)
        merged = _over(merged, layer)
    return msgspec.convert(merged, BatchOptions)


def _known(path: Path, layer: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in layer:
        if key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the keys are: {', '.join(KEYS)}"
            raise SettingsError(
                f"{path} has the key {key!r}, which is none of a batch script: {hint}; "
                "for any other option of sbatch write: sbatch = ['--name=value']"
            )
    return layer


def _check(source: str, layer: Mapping[str, Any]) -> None:
    try:
        msgspec.convert(dict(layer), BatchOptions)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source}: {error}") from error


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two layers: values of ``above`` override, lists and tables are added."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(value, list) and isinstance(old, list):
            merged[key] = [*old, *value]
        elif isinstance(value, dict) and isinstance(old, dict):
            merged[key] = {**old, **value}
        else:
            merged[key] = value
    return merged


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Parse ``NAME=VALUE`` texts; raises ``SettingsError`` for a text without a value."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--env {text!r} has no value: write --env NAME=VALUE")
        found[name] = value
    return found
