"""Store for process groups of ``torch.distributed`` that needs no port: it uses one ``Exchange`` of the members.

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
    """Store with the operations that process groups need: publish values, then read those of the others.

    One all-gather serves the whole start. Either all members publish before they read (Gloo), or one member ``leads``:
    only that member publishes, and the others read (NCCL).
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
            self.gather()

    def check(self, keys: list[str]) -> bool:
        """True if these keys are known here already."""
        return all(key in self.values for key in keys)

    def gather(self) -> None:
        """Gather the published values of all, once; every member must call it, even if it could not make its group."""
        exchange, self._exchange = self._exchange, None  # once: no other member would take part in a second exchange
        for said in exchange(msgspec.msgpack.encode(self.values)) if exchange else ():
            self.values.update(msgspec.msgpack.decode(said, type=dict[str, bytes]))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Meet, after which all values are present; the exchange has a timeout of its own."""
        if not self.check(keys):
            self.gather()
        if missing := [key for key in keys if key not in self.values]:
            raise EngineError(f"no member published {missing} before the exchange")

    def get(self, key: str) -> bytes:
        """Read the value published under ``key``."""
        self.wait([key])
        return self.values[key]
