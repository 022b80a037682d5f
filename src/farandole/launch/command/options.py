"""Command-line options of the knobs, and a parser that suggests corrections.

    parser = Parser(prog="farandole run")
    add_knobs(parser)
    arguments = knob_arguments(parser.parse_args(["--engine", "tcp"]))     # {"engine": "tcp"}
    settings = Settings.resolve(arguments)

Every knob of ``settings`` becomes an option automatically; this module has no code for single knobs.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
import typing
from collections.abc import Collection, Sequence
from typing import Any, NoReturn, final

from farandole.errors import SettingsError, UsageError
from farandole.settings import KNOBS, PAIRS, Knob, Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

USAGE_ERROR = 2
WIDTH = 80
MOST_MEANT = 3
"""Most words that an error suggests."""


@final
class Parser(argparse.ArgumentParser):
    """Parser that answers unknown words with the nearest known ones; help is 80 columns wide and shows defaults."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Formatter)
        self._preferred: frozenset[str] = frozenset()
        super().__init__(allow_abbrev=False, **options)

    def abbreviate(self, preferred: Collection[str]) -> None:
        """Accept abbreviated options, as argparse does by default, with priority for ``preferred``."""
        self.allow_abbrev, self._preferred = True, frozenset(preferred)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, but refuse unknown options here instead of returning them to the parent parser."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """The option that a word abbreviates; none if it is ambiguous.

        argparse also calls this for words of the command, which must pass through, and would refuse an ambiguous one.
        """
        found = super()._get_option_tuples(option_string)
        for candidates in (found, [each for each in found if self._preferred.intersection(each[0].option_strings)]):
            if len({id(action) for action, *_ in candidates}) == 1:
                return list(candidates[:1])
        return []

    def error(self, message: str) -> NoReturn:
        """Print the error and the fix, and exit with 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message}{self._hint(message)}\n")

    def _hint(self, message: str) -> str:
        legal = sorted(self._option_string_actions)
        unknown = re.search(r"unrecognized arguments: (-[^\s=]*)", message)
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        close = ""
        if unknown:
            close = _closest(unknown[1], legal)
        elif choice:
            close = _closest(choice[1], [each.strip("' ") for each in choice[2].split(",")])
        if unknown and not close:
            return "\n" + textwrap.fill(f"The options are: {', '.join(legal)}", WIDTH, break_on_hyphens=False)
        return f"{close}\nSee: {self.prog} --help"


def _closest(typed: str, legal: Sequence[str]) -> str:
    """Suggestion from the ``legal`` words: those with this prefix, or else the most similar one."""
    close = [each for each in legal if typed.strip("-") and each.startswith(typed)][:MOST_MEANT]
    close = close or difflib.get_close_matches(typed, legal, n=1)
    return f"; did you mean {' or '.join(close)}?" if close else ""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=WIDTH)


def add_knobs(parser: argparse.ArgumentParser) -> None:
    """Add one option for every knob with flags, under the heading of its group."""
    headings = dict.fromkeys(knob.group for knob in KNOBS.values())
    groups = {heading: parser.add_argument_group(heading) for heading in headings}
    for name, annotation in typing.get_type_hints(Settings).items():
        knob = KNOBS[name]
        for flags, switch in ((knob.flags, True), (knob.off_flags, False)):
            if flags:
                _add(groups[knob.group], name, knob, annotation, flags, switch)


def knob_arguments(parsed: argparse.Namespace) -> dict[str, Any]:
    """Knobs given on the command line, by name, in their units."""
    return {
        name: round(value * knob.flag_scale) if knob.flag_scale != 1.0 else value
        for name, knob in KNOBS.items()
        if (value := getattr(parsed, name, None)) is not None
    }


def read_file(path: str) -> dict[str, Any]:
    """Read the knobs of a TOML file; raises ``UsageError`` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            f"the settings file {path} is not TOML: {error}; write lines like: engine = 'shm'"
        ) from error


def _add(
    group: argparse._ArgumentGroup, name: str, knob: Knob, annotation: Any, flags: tuple[str, ...], switch: bool
) -> None:
    """Add one option; ``switch`` is False for flags that turn a knob off."""
    default = getattr(Settings(), name)
    if annotation is bool:
        told = f"{knob.help} (default: {'yes' if default else 'no'})" if switch else f"do not {knob.help}"
        if switch:
            group.add_argument(*flags, dest=name, default=None, action=argparse.BooleanOptionalAction, help=told)
        else:
            group.add_argument(*flags, dest=name, default=None, action="store_const", const=False, help=told)
        return
    if name in PAIRS:
        told = f"{knob.help} (default: {' '.join(f'{each:g}' for each in default)})"
        group.add_argument(*flags, dest=name, type=float, nargs=2, metavar=("MIN", "MAX"), help=told)
        return
    shown = str(default) if knob.flag_scale == 1.0 else f"{default / knob.flag_scale:g}"
    told = f"{knob.help} (default: {shown})" if shown else knob.help
    if typing.get_origin(annotation) is typing.Literal:
        group.add_argument(*flags, dest=name, type=str.lower, choices=typing.get_args(annotation), help=told)
    else:
        metavar = {int: "N", float: "X", str: knob.metavar}[annotation]
        group.add_argument(*flags, dest=name, type=annotation, metavar=metavar, help=told)
