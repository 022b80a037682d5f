"""One secret per job, and the CURVE keys of both sides of the control plane derived from it.

    >>> keys = JobKeys.from_secret(new_secret())
    >>> len(keys.server.public), len(keys.client.secret)
    (40, 40)

Every process with the secret is part of the job; no other process passes the handshake. The secret is passed on by
inheritance or standard input, never by argv.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import final

import msgspec
import zmq
from zmq.utils import z85

from farandole.errors import ControlError

SECRET_BYTES = 32


@final
class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair in Z85, the format of ZeroMQ."""

    public: bytes
    secret: bytes


@final
class JobKeys(msgspec.Struct, frozen=True):
    """Key pair of the controller, and key pair that all workers and agents share."""

    server: KeyPair
    client: KeyPair

    @classmethod
    def from_secret(cls, secret: str) -> JobKeys:
        """Derive both pairs from the hexadecimal secret; raises ``ControlError`` if its format is wrong."""
        try:
            seed = bytes.fromhex(secret)
        except ValueError:
            seed = b""
        if len(seed) != SECRET_BYTES:
            raise ControlError(
                f"the job's key must be {2 * SECRET_BYTES} hexadecimal digits, found {len(secret)} characters: "
                "pass FARANDOLE_KEY on exactly as the launcher set it"
            )
        return cls(server=_derive(seed, b"farandole.server"), client=_derive(seed, b"farandole.client"))


def new_secret() -> str:
    """Generate a secret for one job, in hexadecimal."""
    return secrets.token_hex(SECRET_BYTES)


def _derive(seed: bytes, person: bytes) -> KeyPair:
    secret = z85.encode(hashlib.blake2b(seed, digest_size=32, person=person).digest())
    return KeyPair(public=zmq.curve_public(secret), secret=secret)
