"""Access to a live page: its keys, and the address on which it listens.

    keys = PageKeys.new()
    keys.role("...")                    # Role.CONTROL, Role.LOOK or None
    keys.link("http://127.0.0.1:8899")  # with the key in the fragment, which no browser sends anywhere

A viewer with the ``control`` key may stop the training; a viewer with the ``look`` key only looks. Both have 256 bits.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import ipaddress
import secrets
import ssl
from typing import final

from farandole.errors import UsageError

KEY_BYTES = 32


@final
class Role(enum.Enum):
    """Rights of a viewer."""

    LOOK = "look"
    CONTROL = "control"


@final
class PageKeys:
    """The two keys of one page; they are in no file except that of the link, and in no log."""

    def __init__(self, control: str, look: str) -> None:
        self._control, self._look = control, look

    @classmethod
    def new(cls) -> PageKeys:
        """Fresh keys."""
        return cls(secrets.token_urlsafe(KEY_BYTES), secrets.token_urlsafe(KEY_BYTES))

    def role(self, key: object) -> Role | None:
        """Rights of a viewer with this key; ``None`` for a wrong key. Takes the same time for every key."""
        shown = _digest(key if isinstance(key, str) else "")
        may_control = hmac.compare_digest(shown, _digest(self._control))
        may_look = hmac.compare_digest(shown, _digest(self._look))
        return Role.CONTROL if may_control else Role.LOOK if may_look else None

    def link(self, address: str, role: Role = Role.CONTROL) -> str:
        """Link to the page at ``address``."""
        return f"{address}/#key={self._control if role is Role.CONTROL else self._look}"

    def fragment(self, role: Role) -> str:
        """Part of a link after the page's own address."""
        return self.link("", role)[1:]

    def __repr__(self) -> str:
        return "PageKeys(...)"


def listening(address: str, certificate: str) -> tuple[str, int, ssl.SSLContext | None]:
    """Host, port and TLS of a page; raises ``UsageError`` for an address that would carry keys in the clear.

    >>> listening("127.0.0.1:0", "")
    ('127.0.0.1', 0, None)
    """
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdecimal() or int(port) > 65535 or not host:
        raise UsageError(f"--live-listen {address}: write HOST:PORT, such as 127.0.0.1:8899")
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(certificate)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"--live-certificate {certificate}: {error.strerror or error}; give a PEM file that has the private "
                "key and the certificate"
            ) from error
        return host, int(port), context
    if not _is_loopback(host):
        raise UsageError(
            f"--live-listen {address}: others can read along there. Give a certificate (--live-certificate FILE), or "
            "listen on 127.0.0.1 and come by ssh -L"
        )
    return host, int(port), None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
