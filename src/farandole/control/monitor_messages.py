"""Messages of a launcher to the monitor of its job, a line of JSON each on standard input, and its answers.

    encode_line(MonitorConfig(folder="runs/a", command=["python", "train.py"], live=True))

The monitor (``farandole.monitor``) is a child process, so that no viewer can hold up the job, and on the launcher's
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
"""Begin of an address in the file system."""


class _Line(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    pass


@final
class MonitorConfig(_Line, frozen=True):
    """Begin of a monitor: what it records, and where its page is.

    With ``live`` there is a page at ``listen``, by TLS if there is a ``certificate`` (a PEM file with key and chain);
    or at no port, but at a socket in the file system, as ``unix:PATH``, for a process of this host. ``link_file`` gets
    the link, as a file of the user alone. ``csv`` and ``tensorboard`` are written beside the record. With ``is_quiet``
    nobody is told where all that is; with ``is_optional`` the job begins without the monitor where that cannot be. The
    record of a ``search`` is written by the search, and the monitor shows it. With ``in_cells`` ranks train in those of
    a notebook, which tells of each. The page stays for ``stay_s`` after the end of a job that nobody has interrupted.
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
    """A cell of a notebook begins on the ranks, which ``text`` names; "": none runs there any more."""

    text: str


@final
class MonitorOutput(_Line, frozen=True):
    """Lines that a notebook has shown of its ranks; ``stream`` is 0 for their standard output, 1 for their error."""

    stream: int
    text: str


@final
class MonitorEnd(_Line, frozen=True):
    """End of the job: its exit status, why that is not 0, and for how long the page is to stay."""

    status: int
    words: str = ""
    stay_s: float = 0.0


@final
class MonitorReady(_Line, frozen=True):
    """Answer of the monitor to its config: where it records, and its link ("" where there is no page)."""

    folder: str
    link: str = ""


@final
class MonitorRefusal(_Line, frozen=True):
    """Answer of the monitor where it cannot begin, with what to type."""

    text: str


Line: TypeAlias = MonitorConfig | MonitorContact | MonitorCell | MonitorOutput | MonitorEnd
Answer: TypeAlias = MonitorReady | MonitorRefusal

_lines, _answers = msgspec.json.Decoder(Line), msgspec.json.Decoder(Answer)


def encode_line(message: Line | Answer) -> bytes:
    """A message as a line."""
    return pack(msgspec.json.encode, message, exact=isinstance(message, MonitorConfig | MonitorReady)) + b"\n"


def decode_line(line: bytes) -> Line:
    """Message of a launcher."""
    message: Line = unpack(_lines.decode, line)
    return message


def decode_answer(line: bytes) -> Answer:
    """Answer of a monitor."""
    answer: Answer = unpack(_answers.decode, line)
    return answer
