"""A store for ``torch.distributed``'s process groups that needs no port: members meet by their ``Exchange``, once.

ProcessGroupGloo(ExchangeStore(exchange), rank, size, options)
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, final

import msgspec
import torch.distributed as dist

from farandole.engines.engine import Exchange
from farandole.errors import EngineError

_Store: Any = dist.Store  # type: ignore[attr-defined,unused-ignore]


@final
class ExchangeStore(_Store):  # type: ignore[misc]
    """A store that does what process groups need: publish, then read what the others published.

    One all-gather serves the whole start. Everybody publishes before reading (Gloo); or one member ``leads``: it alone
    publishes, and the others read (NCCL).
    """

    def __init__(self, exchange: Exchange, leads: bool = False) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}
        self._exchange: Exchange | None = exchange
        self._leads = leads

    def set(self, key: str, value: bytes) -> None:
        """Publish ``value`` under ``key``."""
        self.values[key] = bytes(value)
        if self._leads:
            self.meet()

    def check(self, keys: list[str]) -> bool:
        """True if these keys are known here already."""
        return all(key in self.values for key in keys)

    def meet(self) -> None:
        """Gather what all have published, once; every member must, also one that could not make its group."""
        exchange, self._exchange = self._exchange, None  # once: nobody else would come to a second exchange
        for said in exchange(msgspec.msgpack.encode(self.values)) if exchange else ():
            self.values.update(msgspec.msgpack.decode(said, type=dict[str, bytes]))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Meet, after which all there will ever be is there; the exchange has a time-out of its own."""
        if not self.check(keys):
            self.meet()
        if missing := [key for key in keys if key not in self.values]:
            raise EngineError(f"no member published {missing} before the exchange")

    def get(self, key: str) -> bytes:
        """Read what was published under ``key``."""
        self.wait([key])
        return self.values[key]
