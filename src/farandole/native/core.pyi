"""The native core: kernels on plain addresses. ``dtype`` and ``op`` are the numbers of ``collective``'s enums.

All functions raise ``ValueError`` for a dtype or reduction they do not serve; large ones release the GIL.
"""

from collections.abc import Callable, Sequence
from typing import final

def copy(dst: int, src: int, nbytes: int) -> None:
    """Copy ``nbytes`` bytes; the two places may overlap."""

def fill(address: int, count: int, dtype: int, value: float) -> None:
    """Set every element to ``value``; integers saturate."""

def fill_identity(address: int, count: int, dtype: int, op: int) -> None:
    """Set every element to what changes nothing in a reduction by ``op``."""

def scale(address: int, count: int, dtype: int, factor: float) -> None:
    """Multiply in place, as ``reduce`` does; bool is left alone."""

def divide(address: int, count: int, dtype: int, n: int) -> None:
    """Divide in place; integers truncate toward zero; bool is left alone."""

def reduce_into(dst: int, src: int, count: int, dtype: int, op: int) -> None:
    """``dst[i] = dst[i] op src[i]``; AVERAGE sums (bool: *and*), without dividing."""

def reduce(
    sources: list[int], dst: int, count: int, dtype: int, op: int,
    prescale: float = 1.0, postscale: float = 1.0, divisor: int = 1,
) -> None:  # fmt: skip
    """``dst[i] = postscale * ((prescale * s0[i] op prescale * s1[i] op ...) / divisor)``, in the order of ``sources``.

    ``dst`` is one of the sources or apart from all of them. float16 and bfloat16 are rounded once, at the end.
    Integers without factors and divisor wrap around. With one the reduction is exact (64 bits for products and scaled
    contributions, 128 for sums); each step truncates toward zero, and the result is the nearest value of the dtype.
    Whole factors and 1/n are exact, others multiply in float64.
    """

def adasum_dots(a: int, b: int, count: int, dtype: int) -> tuple[float, float, float]:
    """``(a·a, a·b, b·b)`` in float64, for the four real floating types."""

def adasum_combine(a: int, b: int, out: int, count: int, dtype: int, ca: float, cb: float) -> None:
    """``out[i] = ca * a[i] + cb * b[i]``, computed in float64 and rounded once; ``out`` may be ``a`` or ``b``."""

def call_stacks() -> dict[int, list[tuple[str | None, str]]]:
    """Module and name of each function that each thread is in, from the innermost on; keeps no frame alive."""

def digest(addresses: Sequence[int], nbytes: Sequence[int]) -> list[int]:
    """64-bit digests of ``nbytes[i]`` bytes at ``addresses[i]``, in the order of the arguments.

    Equal bytes have equal digests on every machine; unequal ones have unequal digests but for chance, about 1 in 2**64.
    Not a cryptographic hash. The GIL is given away when there is more than 1 MiB to read.
    """

@final
class Region:
    """Engine memory of one member, mapped by all. Alive as long as it is referenced, also after ``Endpoint.close``."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

@final
class Endpoint:
    """A member's end of a group in shared memory.

    Making one is collective: ``exchange`` is an all-gather among the members. Collectives raise ``MismatchError``,
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
        """Join as member ``place``; ``names`` is what errors call the members, ``label`` the group.

        A wait watches for ``spin_s``, and then sleeps.
        """

    def allocate(self, nbytes: int) -> Region:
        """Make zeroed engine memory on every member."""

    def allreduce(self, address: int, count: int, dtype: int, op: int, prescale: float, postscale: float) -> None:
        """Reduce in place; without copying if every member's array lies in the same region."""

    def allgather(self, send: int, recv: int, dtype: int, counts: Sequence[int]) -> None:
        """Concatenate ``counts[i]`` elements of each member ``i`` in ``recv``."""

    def broadcast(self, address: int, count: int, dtype: int, root: int) -> None:
        """Copy the array of member ``root`` to all."""

    def alltoall(
        self, send: int, send_counts: Sequence[int], recv: int, recv_counts: Sequence[int], dtype: int
    ) -> None:
        """Send consecutive parts of ``send`` to each member."""

    def reducescatter(
        self, send: int, recv: int, dtype: int, counts: Sequence[int], op: int, prescale: float, postscale: float
    ) -> None:
        """Reduce everybody's ``send`` and keep part ``place`` of it in ``recv``."""

    def gather(self, payload: bytes) -> list[bytes]:
        """All-gather a few bytes; lengths may differ."""

    def barrier(self) -> None:
        """Return when every member has come."""

    def abort(self, reason: str) -> None:
        """End the group for all members; from any thread."""

    def close(self) -> None:
        """Give everything back; from any thread."""

    def statistics(self) -> dict[str, int]:
        """``collectives``, ``bytes``, ``in_place`` and ``sleeps`` so far."""

@final
class FastPath:
    """Slots of names in memory that all ranks of a host map, where calls of compiled graphs meet without Python.

    Making one is collective, as with ``Endpoint``; raises ``EngineError`` on every member if one cannot share memory. A
    call waits for ``limit_s`` at most. ``attach``, ``detach`` and ``close`` return when no call of the name, or of any,
    is on the way; ``stop`` waits for nobody.
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
        """Let later calls with ``spec`` meet in a slot; false if there is no such slot, or too much to reduce.

        ``inputs`` are the framework's dtypes and the shapes; ``origin`` is the run, the device and the place of the
        call that has just ended.
        """

    def detach(self, name: str) -> None:
        """Have calls of a name go through Python."""

    def stop(self) -> None:
        """Have all calls go through Python; a signal handler may call it."""

    def close(self) -> None:
        """Forget all names."""

    @property
    def met(self) -> int:
        """Number of calls that have met the others here."""

    @property
    def left(self) -> int:
        """Number of calls that have not, in time."""

    def pace(self) -> tuple[float, float]:
        """Time of the last of those that have met (``time.monotonic()``; 0: none), and the longest between two.

        The latter is in seconds, and since this was asked before.
        """

def fast_call() -> int:
    """Address of the function that the libraries of graphs call (``FastCall`` in native/graph_request.hpp)."""

def forget_origins(name: str) -> None:
    """Forget where calls of a name came from, as a new program has it."""
