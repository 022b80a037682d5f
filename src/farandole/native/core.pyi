"""Native core: kernels on plain addresses. ``dtype`` and ``op`` are the numbers of ``collective``'s enums.

All functions raise ``ValueError`` for an unsupported dtype or reduction; they release the GIL for large arrays.
"""

from collections.abc import Callable, Sequence
from typing import final

def copy(dst: int, src: int, nbytes: int) -> None:
    """Copy ``nbytes`` bytes; the two regions may overlap."""

def fill(address: int, count: int, dtype: int, value: float) -> None:
    """Set every element to ``value``; integers saturate."""

def fill_identity(address: int, count: int, dtype: int, op: int) -> None:
    """Set every element to the identity of a reduction by ``op``."""

def scale(address: int, count: int, dtype: int, factor: float) -> None:
    """Multiply in place, like ``reduce``; bool is unchanged."""

def divide(address: int, count: int, dtype: int, n: int) -> None:
    """Divide in place; integers truncate toward zero; bool is unchanged."""

def reduce_into(dst: int, src: int, count: int, dtype: int, op: int) -> None:
    """``dst[i] = dst[i] op src[i]``; AVERAGE sums (bool: *and*), without dividing."""

def reduce(
    sources: list[int], dst: int, count: int, dtype: int, op: int,
    prescale: float = 1.0, postscale: float = 1.0, divisor: int = 1,
) -> None:  # fmt: skip
    """``dst[i] = postscale * ((prescale * s0[i] op prescale * s1[i] op ...) / divisor)``, in the order of ``sources``.

    ``dst`` is one of the sources or overlaps none of them. float16 and bfloat16 are rounded once, at the end.
    Integers without factors and divisor wrap around. With any of these the reduction is exact (64 bits for products and
    scaled contributions, 128 for sums); each step truncates toward zero, and the result is the nearest value of the
    dtype. Whole factors and 1/n are exact, others multiply in float64.
    """

def adasum_dots(a: int, b: int, count: int, dtype: int) -> tuple[float, float, float]:
    """``(a·a, a·b, b·b)`` in float64, for the four real floating types."""

def adasum_combine(a: int, b: int, out: int, count: int, dtype: int, ca: float, cb: float) -> None:
    """``out[i] = ca * a[i] + cb * b[i]``, computed in float64 and rounded once; ``out`` may be ``a`` or ``b``."""

def call_stacks() -> dict[int, list[tuple[str | None, str]]]:
    """Call stack of each thread, as module and name of each function, innermost first; keeps no frame alive."""

def digest(addresses: Sequence[int], nbytes: Sequence[int]) -> list[int]:
    """64-bit digests of ``nbytes[i]`` bytes at ``addresses[i]``, in the order of the arguments.

    Equal bytes have equal digests on every machine; unequal bytes have equal digests with probability 1 in 2**64.
    Not a cryptographic hash. The GIL is released for more than 1 MiB.
    """

@final
class Region:
    """Engine memory of one member, mapped by all. Lives as long as it is referenced, also after ``Endpoint.close``."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

@final
class Endpoint:
    """One member's end of a group in shared memory.

    The constructor is collective: ``exchange`` is an all-gather among the members. Collectives raise ``MismatchError``,
    ``StallError``, ``AbortError`` or ``EngineError``, and run Python's signal handlers while they wait.
    """

    def __init__(
        self,
        place: int,
        names: Sequence[str],
        label: str,
        deadline_s: float,
        exchange: Callable[[bytes], list[bytes]],
        spin_s: float = 50e-6,
    ) -> None:
        """Join as member ``place``; errors use ``names`` for the members, and ``label`` for the group.

        A wait polls for ``spin_s``, and then sleeps.
        """

    def allocate(self, nbytes: int) -> Region:
        """Allocate zeroed engine memory on every member."""

    def allreduce(self, address: int, count: int, dtype: int, op: int, prescale: float, postscale: float) -> None:
        """Reduce in place; without copying if every member's array lies in the same region."""

    def allgather(self, send: int, recv: int, dtype: int, counts: Sequence[int]) -> None:
        """Concatenate ``counts[i]`` elements of each member ``i`` in ``recv``."""

    def broadcast(self, address: int, count: int, dtype: int, root: int) -> None:
        """Copy the array of member ``root`` to all members."""

    def alltoall(
        self, send: int, send_counts: Sequence[int], recv: int, recv_counts: Sequence[int], dtype: int
    ) -> None:
        """Send consecutive parts of ``send`` to each member."""

    def reducescatter(
        self, send: int, recv: int, dtype: int, counts: Sequence[int], op: int, prescale: float, postscale: float
    ) -> None:
        """Reduce the ``send`` arrays of all members, and store part ``place`` in ``recv``."""

    def gather(self, payload: bytes) -> list[bytes]:
        """All-gather a few bytes; lengths may differ."""

    def barrier(self) -> None:
        """Return when every member has called it."""

    def abort(self, reason: str) -> None:
        """End the group for all members; any thread may call it."""

    def close(self) -> None:
        """Free all resources; any thread may call it."""

    def statistics(self) -> dict[str, int]:
        """Counters ``collectives``, ``bytes``, ``in_place`` and ``sleeps``."""

@final
class FastPath:
    """Slots of names in shared memory of a host's ranks, where calls of compiled graphs are reduced without Python.

    The constructor is collective, like ``Endpoint``'s; raises ``EngineError`` on every member if one cannot share
    memory. A call waits at most ``limit_s``. ``attach`` and ``detach`` return when no call of the name is in progress,
    ``close`` when no call is; ``stop`` never blocks.
    """

    def __init__(
        self, place: int, names: Sequence[str], exchange: Callable[[bytes], list[bytes]], limit_s: float
    ) -> None: ...
    def attach(
        self,
        library: int,
        spec: bytes,
        name: str,
        slot: int,
        dtype: int,
        op: int,
        prescale: float,
        postscale: float,
        inputs: Sequence[tuple[int, Sequence[int]]],
        origin: Sequence[int],
    ) -> bool:
        """Make later calls with ``spec`` use a slot; false if there is no such slot, or too much data.

        ``inputs`` are the framework's dtypes and the shapes; ``origin`` is the run, the device and the place of the
        call that has just ended.
        """

    def detach(self, name: str) -> None:
        """Make calls of a name go through Python."""

    def stop(self) -> None:
        """Make all calls go through Python; a signal handler may call it."""

    def close(self) -> None:
        """Forget all names."""

    @property
    def met(self) -> int:
        """Number of calls completed on the fast path."""

    @property
    def left(self) -> int:
        """Number of calls that left the fast path, because other ranks were late."""

    def pace(self) -> tuple[float, float]:
        """Time of the last completed call (``time.monotonic()``; 0: none), and the longest time between two of them.

        The longest time is in seconds, and counts since the previous ``pace()``.
        """

def fast_call() -> int:
    """Address of the function that the graphs' libraries call (``FastCall`` in native/graph_request.hpp)."""

def forget_origins(name: str) -> None:
    """Forget the origins of a name's calls, because a new program contains the name."""
