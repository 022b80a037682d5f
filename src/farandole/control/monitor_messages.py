"""Messages from a launcher to the monitor of its job (one line of JSON each, on standard input), and the answers.

    encode_line(MonitorConfig(folder="runs/a", command=["python", "train.py"], live=True))

The monitor (``farandole.monitor``) is a child process, so that no viewer can block the job. It runs on the launcher's
host, so that a proxy there need not reach the hosts of workers.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.os_text import pack, unpack

MODULE = "farandole.monitor.process"
"""Module that a launcher starts, by ``python -m``."""

LOOPBACK = "127.0.0.1:0"

UNIX = "unix:"
"""Prefix of the address of a socket in the file system."""


class _Line(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    pass


@final
class MonitorConfig(_Line, frozen=True):
    """Configuration of a monitor, its first message: what to record, and where to serve the page.

    With ``live`` the page is served at ``listen``: a port, with TLS if there is a ``certificate`` (a PEM file with key
    and chain), or ``unix:PATH``, a socket in the file system for processes of this host. ``link_file`` receives the
    link and is readable only by the user. ``csv`` and ``tensorboard`` are exports beside the record. ``is_quiet``: the
    launcher does not print these paths and the link. ``is_optional``: the job starts even if the monitor cannot. With
    ``search`` the search writes the record, and the monitor only shows it. With ``in_cells`` ranks train in notebook
    cells, and the notebook reports each cell. After a job that was not interrupted the page stays up ``stay_s``.
    """

    folder: str
    command: list[str]
    live: bool = False
    listen: str = LOOPBACK
    certificate: str = ""
    link_file: str = ""
    csv: bool = False
    tensorboard: bool = False
    search: bool = False
    is_quiet: bool = False
    is_optional: bool = False
    in_cells: bool = False
    stay_s: float = 0.0


@final
class MonitorContact(_Line, frozen=True):
    """Addresses of the job's controller, and the job's secret."""

    addresses: list[str]
    secret: str


@final
class MonitorCell(_Line, frozen=True):
    """A notebook cell starts on the ranks; ``text`` names the cell ("": the cell has ended, none runs)."""

    text: str


@final
class MonitorOutput(_Line, frozen=True):
    """Output lines of ranks that a notebook has shown; ``stream`` is 0 for standard output, 1 for standard error."""

    stream: int
    text: str


@final
class MonitorEnd(_Line, frozen=True):
    """End of the job: its exit status, the reason if that is not 0, and how long the page stays up."""

    status: int
    words: str = ""
    stay_s: float = 0.0


@final
class MonitorReady(_Line, frozen=True):
    """Answer of the monitor to its config: the folder of the record and the link to the page ("": no page)."""

    folder: str
    link: str = ""


@final
class MonitorRefusal(_Line, frozen=True):
    """Answer of a monitor that cannot start; ``text`` says why and what to type."""

    text: str


Line: TypeAlias = MonitorConfig | MonitorContact | MonitorCell | MonitorOutput | MonitorEnd
Answer: TypeAlias = MonitorReady | MonitorRefusal

_lines, _answers = msgspec.json.Decoder(Line), msgspec.json.Decoder(Answer)


def encode_line(message: Line | Answer) -> bytes:
    """Encode a message as a line."""
    return pack(msgspec.json.encode, message, exact=isinstance(message, MonitorConfig | MonitorReady)) + b"\n"


def decode_line(line: bytes) -> Line:
    """Decode a message of a launcher."""
    message: Line = unpack(_lines.decode, line)
    return message


def decode_answer(line: bytes) -> Answer:
    """Decode an answer of a monitor."""
    answer: Answer = unpack(_answers.decode, line)
    return answer
