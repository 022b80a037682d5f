"""Operating-system texts in messages: file names and arguments may hold bytes that are not valid UTF-8.

    frame = pack(msgspec.json.encode, config, exact=True)       # for a process that opens files by these names
    config = unpack(decoder.decode, frame)                      # the same texts as before
    frame = pack(msgspec.json.encode, failure)                  # for people: such a byte is shown as an escape

Python represents such bytes by lone surrogates, which UTF-8 cannot encode. With ``exact`` each is replaced by an unused
character and its code in hexadecimal. Messages without such bytes pay only for one search.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_MARK = "\U0010ffff"
_MARK_BYTES = _MARK.encode()
_HALF = re.compile("[\ud800-\udfff]")
_MARKED = re.compile(f"{_MARK}(d[89a-f][0-9a-f]{{2}})")


def legible(text: str) -> str:
    r"""``text`` with lone surrogates escaped, so that it can be encoded and read.

    >>> legible("M\udcfcller")
    'M\\udcfcller'
    """
    return printed(text).decode()


def printed(text: str) -> bytes:
    """Encode ``text`` for people to read; lone surrogates are escaped and raise no error."""
    return text.encode(errors="backslashreplace")


def pack(encode: Callable[[Any], bytes], message: Any, *, exact: bool = False) -> bytes:
    """Encode ``message`` by ``encode`` (one of msgspec's); only with ``exact`` does ``unpack`` restore all texts."""
    try:
        return encode(message)
    except UnicodeEncodeError:
        return encode(_replaced(message, _marked if exact else legible))


def unpack(decode: Callable[[bytes], T], frame: bytes) -> T:
    """Decode a frame of ``pack`` by ``decode``."""
    message = decode(frame)
    is_marked = _MARK_BYTES in frame
    return _replaced(message, _unmarked) if is_marked else message


def _marked(text: str) -> str:
    return _HALF.sub(lambda found: f"{_MARK}{ord(found[0]):04x}", text)


def _unmarked(text: str) -> str:
    return _MARKED.sub(lambda found: chr(int(found[1], 16)), text)


def _replaced(node: Any, change: Callable[[str], str]) -> Any:
    if isinstance(node, str):
        return change(node)
    if isinstance(node, dict):
        return {_replaced(key, change): _replaced(value, change) for key, value in node.items()}
    if isinstance(node, list | tuple):
        children = [_replaced(each, change) for each in node]
        return type(node)(*children) if hasattr(node, "_fields") else type(node)(children)
    if isinstance(node, msgspec.Struct):
        fields = {name: _replaced(getattr(node, name), change) for name in node.__struct_fields__}
        return msgspec.structs.replace(node, **fields)
    return node
