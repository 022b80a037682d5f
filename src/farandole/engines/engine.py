"""The contract between the runtime and the engines, which move the bytes of collectives.

Threads. An engine has one user at a time: the thread that leads a lane, or that runs an optimizer. Other threads call
``abort``: the control thread, a thread that calls ``shutdown()``, a signal handler on top of the user's own frames. So
``abort`` acquires no lock that a user holds while it waits, and stores the reason before it wakes any thread. No other
thread can abort an engine that is still being made; the thread that makes it checks ``Group.broken`` meanwhile, which
all groups of a session share.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, final

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.control.reentrant_event import ReentrantEvent
from farandole.errors import UnsupportedError

Exchange: TypeAlias = Callable[[bytes], list[bytes]]
"""All-gather of a few bytes among a group's members over the control plane; blocks, raises at the start timeout."""

PAYLOAD_BYTES = 64
"""Largest payload of a member in ``Engine.gather_small``."""

Share: TypeAlias = Callable[[str, Sequence[int], bytes], list[bytes]]
"""All-gather of a few bytes among some of a job's ranks, under a single-use key."""


@final
class Rendezvous:
    """An ``Exchange`` among an engine's members, or some of them, for setting up the engine.

    rendezvous = Rendezvous(share, "process set 0", (0, 1, 2, 3))
    rendezvous(b"hello")                                # four answers
    rendezvous.among("host a", (0, 1))(b"neighbour")    # two
    """

    def __init__(self, share: Share, key: str, ranks: Sequence[int]) -> None:
        self._share, self._key, self._ranks = share, key, tuple(ranks)
        self._rounds = 0  # no lock: one thread makes an engine; all members must count the same, or their keys differ

    def __call__(self, payload: bytes) -> list[bytes]:
        self._rounds += 1
        return self._share(f"{self._key}.{self._rounds}", self._ranks, payload)

    def among(self, label: str, ranks: Sequence[int]) -> Rendezvous:
        """Make a rendezvous of global ``ranks``; ``label`` is unused so far, and the same on each of them."""
        return Rendezvous(self._share, f"{self._key}/{label}", ranks)


@final
@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that one engine connects. ``ranks`` are global and ascending; ``rank`` is this process's index in them.

    ``address`` is the known address of this process for other hosts, or "". ``broken`` is set when the generation ends
    other than by ``shutdown()``, because ``abort`` cannot reach an engine that is still being made. Any thread may call
    ``on_silence`` with the host of a member that has sent nothing for at least ``silence_s`` (0: no limit) while data
    was expected from it. ``ports`` is the range of ports at which other hosts can reach this process.
    """

    rank: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    generation: int
    label: str
    deadline_s: float = 600.0
    address: str = ""
    # Set once, by any thread, and only tested. Not compared: the equality of groups depends on their members.
    broken: ReentrantEvent = field(default_factory=ReentrantEvent, compare=False, repr=False)
    silence_s: float = 0.0
    # Called by a waiting thread inside its loop: it must neither block nor raise.
    on_silence: Callable[[str], object] = field(default=lambda _: None, compare=False, repr=False)
    ports: str = ""

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    def name(self, member: int) -> str:
        """Name of a member in errors."""
        return f"rank {self.ranks[member]} on {self.hosts[member]}"

    def subgroup(self, members: Sequence[int]) -> Group:
        """Group of these members, which include this one."""
        return dataclasses.replace(  # ``broken`` is the same event, not a new one: it ends all groups of the session
            self,
            rank=list(members).index(self.rank),
            ranks=tuple(self.ranks[member] for member in members),
            hosts=tuple(self.hosts[member] for member in members),
        )


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """Memory from an engine; collectives on arrays inside it are its fastest. It lives as long as ``owner``."""

    address: int
    nbytes: int
    owner: Any

    def array(self, dtype: DType, offset: int = 0, count: int | None = None) -> Array:
        """View ``count`` elements from byte ``offset``."""
        room = (self.nbytes - offset) // dtype.itemsize
        return Array(self.address + offset, room if count is None else count, dtype, self.owner)


def require_served(dtype: DType, op: ReduceOp) -> None:
    """Raise ``UnsupportedError`` for a reduction that no engine supports."""
    if op is ReduceOp.ADASUM:
        raise UnsupportedError("engines do not know Adasum; the runtime builds it from other collectives")
    if dtype.is_complex and op in (ReduceOp.MIN, ReduceOp.MAX):
        legal = "Sum, Average and Product"
        raise UnsupportedError(
            f"{op.label} of {dtype.label} does not exist, as complex numbers have no order; use {legal}"
        )


def is_exact(dtype: DType, how: Reduction) -> bool:
    """True if partial results need more digits than the dtype: averages of integers, and scaled integers."""
    is_integer = not (dtype.is_floating or dtype.is_complex or dtype is DType.BOOL)
    return is_integer and (how.op is ReduceOp.AVERAGE or how.is_scaled)


@final
class PayloadError(ValueError):
    """A payload is too long for ``Engine.gather_small``."""


def require_short(payload: bytes) -> None:
    """Raise ``PayloadError`` for a payload that is too long for ``Engine.gather_small``."""
    if len(payload) > PAYLOAD_BYTES:
        raise PayloadError(f"gather_small carries at most {PAYLOAD_BYTES} bytes, got {len(payload)}")


class Engine(ABC):
    """Moves the bytes of collectives among the members of one group, in one order.

    Contract, checked by ``farandole.testing.engine_contract`` for every implementation:

    * One thread at a time calls the collectives, and all members call the same ones in the same order. Every call
      blocks until this member's part is done, releases the GIL while it waits, and ends by result, by ``abort``
      (``AbortError``), or after ``group.deadline_s`` (``StallError``).
    * Arguments of one call agree between members (the runtime ensures it). An engine that can detect disagreement at
      no cost raises ``MismatchError`` on every member, and the next call works.
    * Results are the same bits on every member and in every run: the order of reduction is fixed by rank (where
      ``adds_as_tree``: the first 2^k members, the largest power of two below their number, and the rest). float16 and
      bfloat16 accumulate in float32; between hosts, partial results may travel in the type itself. AVERAGE is the sum
      divided by ``group.size`` (integers truncate toward zero). BOOL: SUM and MAX are *or*, MIN and PRODUCT are *and*,
      AVERAGE is *and*. Complex types support SUM, AVERAGE and PRODUCT. An unsupported reduction raises
      ``UnsupportedError`` on every member (``require_served``). Factors are those of ``Reduction``.
      Integers wrap around in a plain SUM or PRODUCT; with a factor, and in an AVERAGE, they are exact and then limited
      to the dtype (see ``core.reduce``).
    * Roots and counts refer to members' indices, not ranks. Empty arrays and zero counts are legal. In an all-gather
      ``send`` may alias its slice of ``recv``, and in a reduce-scatter ``recv`` its slice of ``send``.
    * Any other exception inside a call, Ctrl-C as well, ends this member's engine: its later calls raise, and no other
      member gets a result that mixes data of two calls (``interruption``).
    * Any thread may call ``abort`` at any time; it wakes every waiter at once, and is final. ``close`` is idempotent,
      needs no peer, and leaves nothing behind; memory stays valid as long as its owner is referenced.
    """

    name: ClassVar[str]
    adds_as_tree: ClassVar[bool] = False
    """True if sums are trees over the members, so that float32 and float64 sums can be parts of a larger tree."""
    group: Group

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory:
        """Allocate zeroed memory for in-place collectives. Collective: every member passes the same size."""

    @abstractmethod
    def allreduce(self, array: Array, how: Reduction) -> None:
        """Reduce in place; afterwards every member holds the result. Engines do not implement ADASUM."""

    @abstractmethod
    def allgather(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        """Concatenate the ``send`` arrays of all members in ``recv``; ``counts[i]`` elements are from member ``i``."""

    @abstractmethod
    def broadcast(self, array: Array, root: int) -> None:
        """Copy the array of member ``root`` into the arrays of all members."""

    @abstractmethod
    def alltoall(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        """Send consecutive slices of ``send`` to each member; ``recv`` holds the received slices, in member order."""

    @abstractmethod
    def reducescatter(self, send: Array, recv: Array, counts: Sequence[int], how: Reduction) -> None:
        """Reduce the ``send`` arrays of all members; store slice ``rank``, ``counts[rank]`` elements, in ``recv``."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every member has called it."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Make every present and future call of this member raise ``AbortError(reason)``."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources."""

    def gather_small(self, payload: bytes) -> list[bytes]:
        """All-gather up to 64 bytes of each member; trailing NULs may be lost. Built on ``allgather``."""
        import ctypes

        require_short(payload)
        # Variables and arrays keep both buffers alive: engines move bytes by address, which does not.
        send = ctypes.create_string_buffer(payload.ljust(PAYLOAD_BYTES, b"\0"), PAYLOAD_BYTES)
        recv = ctypes.create_string_buffer(PAYLOAD_BYTES * self.group.size)
        self.allgather(
            Array(ctypes.addressof(send), PAYLOAD_BYTES, DType.UINT8, send),
            Array(ctypes.addressof(recv), PAYLOAD_BYTES * self.group.size, DType.UINT8, recv),
            [PAYLOAD_BYTES] * self.group.size,
        )
        return [recv.raw[PAYLOAD_BYTES * i : PAYLOAD_BYTES * (i + 1)].rstrip(b"\0") for i in range(self.group.size)]

    def statistics(self) -> dict[str, int | float | str]:
        """Counters since creation, for users and tests."""
        return {"engine": self.name, "size": self.group.size}
