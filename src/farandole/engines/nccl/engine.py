"""Engine for CUDA tensors, by NCCL; host tensors are copied to the GPU and back.

    engine = NcclEngine(group, exchange)

NCCL reduces only the types for which it meets the contract: the wider numbers. All others are moved by NCCL and reduced
by PyTorch on the GPU, in rank order: NCCL rounds float16 after each rank, and has no bool, no complex and no 16-bit
integers. Minima and maxima of floats also take this slower way: PyTorch keeps NaN, and it is not verified that NCCL
does (``fmin`` of C drops NaN). The native core reduces averages of integers, and integers with a factor, on the host,
because they need more than 64 bits: they are rare, and mostly a few counters.

Threads. One thread at a time calls collectives. It does not wait for others inside PyTorch, where it could not be
woken: it polls whether the operation is complete, and checks ``_reason`` and the deadline in between. Any thread may
call ``abort``, which acquires no lock, because it may be a signal handler on top of that thread. It writes ``_reason``
before it aborts the process group, so that operations that fail because of the abort find the reason. The thread that
calls collectives, and ``close``, write ``_failure`` and ``_calls``.

Store for process groups of ``torch.distributed`` that needs no port: it uses one ``Exchange`` of the members.

ProcessGroupGloo(ExchangeStore(exchange), rank, size, options)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, final

import msgspec
import torch
import torch.distributed as dist

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.control.reentrant_event import ReentrantEvent
from farandole.engines.arrays import plain_memory, shares
from farandole.engines.engine import Engine, Exchange, Group, Memory, is_exact, require_served
from farandole.engines.interruption import ends_when_interrupted, said_of
from farandole.engines.nccl.tensors import as_bytes, combine, exactly, finish, scale, tensor, widen
from farandole.engines.transport import interruptible
from farandole.errors import AbortError, CollectiveError, EngineError, StallError

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


MakeProcessGroup: TypeAlias = Callable[[Any, Group], Any]
"""Makes a process group of ``torch.distributed`` from the store and the group."""

CONNECT_S = 30.0
"""Time for the members to connect, beyond the deadline of a collective."""

_NAP_S = 0.00005
_YIELD_S = 0.001
_FOREVER = timedelta(days=365)
"""Timeout for NCCL: this engine enforces the deadlines, because NCCL's watchdog would end the process."""

_OF_FLOATS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.AVERAGE: dist.ReduceOp.SUM,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
}
_OF_INTEGERS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
}
_OPS = {
    **dict.fromkeys((DType.FLOAT32, DType.FLOAT64), _OF_FLOATS),
    **dict.fromkeys((DType.INT32, DType.INT64, DType.INT8, DType.UINT8), _OF_INTEGERS),
}
"""Operations, by type, for which NCCL itself meets the contract; for integers only without a factor."""


@final
class NcclEngine(Engine):
    """Collectives on the GPUs of the members, one GPU each. The first collective connects the GPUs.

    ``make`` and ``device`` replace NCCL and the GPU in tests: arithmetic and bookkeeping are the same on any device.
    """

    name = "nccl"

    def __init__(
        self,
        group: Group,
        exchange: Exchange,
        make: MakeProcessGroup | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.group = group
        self._device = device
        self._reason: str | None = None
        self._failure: tuple[type[CollectiveError], str] | None = None
        self._aborted = ReentrantEvent()
        self._calls = 0
        store = ExchangeStore(exchange, leads=make is None and group.rank == 0)
        making = make or _make_nccl
        self._process_group = _connected(group, exchange, lambda: making(store, group))

    def allocate(self, nbytes: int) -> Memory:
        """Allocate plain host memory."""
        return plain_memory(nbytes)

    @ends_when_interrupted
    def allreduce(self, array: Array, how: Reduction) -> None:
        """Reduce by NCCL's own all-reduce, or by slices, one of which each member reduces."""
        require_served(array.dtype, how.op)
        here = self._begin(array)
        values = self._bring(array, here)
        own = None if is_exact(array.dtype, how) else _OPS.get(array.dtype, {}).get(how.op)
        if own is not None:
            values = scale(values, how.prescale)
            options = dist.AllreduceOptions()
            options.reduceOp = own  # type: ignore[assignment]
            self._run_operation(lambda pg: pg.allreduce([values], options))
            result = finish(values, how.op, self.group.size, how.postscale)
        else:
            counts = shares(array.count, self.group.size, 1)
            mine = self._reduced(values, counts, array.dtype, how)
            result = torch.empty_like(values)
            self._gathered(mine, result, counts)
        self._hand_back(result, array)

    @ends_when_interrupted
    def allgather(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        """Gather by NCCL's own all-gather if all counts are equal, else by a broadcast from each member."""
        here = self._begin(send)
        result = self._room(recv, here)
        self._gathered(self._bring(send, here), result, counts)
        self._hand_back(result, recv)

    @ends_when_interrupted
    def broadcast(self, array: Array, root: int) -> None:
        """Broadcast by NCCL's own broadcast."""
        here = self._begin(array)
        values = self._bring(array, here)
        self._broadcast(values, root)
        self._hand_back(values, array)

    @ends_when_interrupted
    def alltoall(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        """Exchange by PyTorch's all-to-all, which groups sends and receives."""
        here = self._begin(send)
        result = self._room(recv, here)
        self._swap(self._bring(send, here), send_counts, result, recv_counts)
        self._hand_back(result, recv)

    @ends_when_interrupted
    def reducescatter(self, send: Array, recv: Array, counts: Sequence[int], how: Reduction) -> None:
        """Collect this member's slice from all members, and reduce it."""
        require_served(send.dtype, how.op)
        here = self._begin(send)
        self._hand_back(self._reduced(self._bring(send, here), counts, send.dtype, how), recv)

    @ends_when_interrupted
    def barrier(self) -> None:
        """Return when every member has sent a message."""
        self.gather_small(b"")

    @ends_when_interrupted
    def gather_small(self, payload: bytes) -> list[bytes]:
        """Gather by ``allgather``."""
        return super().gather_small(payload)

    def interrupted(self, error: BaseException) -> None:
        """Fail from now on, and wake members that wait for this one."""
        if self._reason is None and self._failure is None:
            self._failure = EngineError, said_of(self.group.label, error)
            self._interrupt()

    def abort(self, reason: str) -> None:
        """Store the reason, then abort the operation on the GPU."""
        if self._reason is None:
            self._reason = reason  # before any operation ends because of it
        self._aborted.set()
        self._interrupt()

    def close(self) -> None:
        """Shut down the process group, its communicator and its threads."""
        clean = self._failure is None and self._reason is None
        self._failure = self._failure or (EngineError, f"the engine of {self.group.label} is closed")
        process_group, self._process_group = self._process_group, None
        if process_group is not None and clean:  # else it was aborted, and has ended
            process_group.shutdown()

    def statistics(self) -> dict[str, int | float | str]:
        """Also count calls, and name the device."""
        return {**super().statistics(), "calls": self._calls, "device": str(self._device or "not connected yet")}

    # -- transfers ----------------------------------------------------------------------------------------------------

    def _reduced(self, values: torch.Tensor, counts: Sequence[int], dtype: DType, how: Reduction) -> torch.Tensor:
        """Reduce all members' contributions to this member's slice."""
        mine = counts[self.group.rank]
        parts = values.new_empty(mine * self.group.size)
        self._swap(values, counts, parts, [mine] * self.group.size)
        if is_exact(dtype, how):
            return exactly(parts, mine, dtype, how).to(values.device)
        first, *others = parts.split(mine) if mine else [parts] * self.group.size
        total = widen(first, how.prescale)
        for other in others:
            total = combine(total, widen(other, how.prescale), how.op)
        return finish(total, how.op, self.group.size, how.postscale).to(values.dtype)

    def _swap(
        self, send: torch.Tensor, send_counts: Sequence[int], recv: torch.Tensor, recv_counts: Sequence[int]
    ) -> None:
        item = send.element_size()
        outgoing, incoming = as_bytes(send), as_bytes(recv)
        sent, received = [n * item for n in send_counts], [n * item for n in recv_counts]
        self._run_operation(lambda pg: pg.alltoall_base(incoming, outgoing, received, sent))

    def _gathered(self, mine: torch.Tensor, whole: torch.Tensor, counts: Sequence[int]) -> None:
        if len(set(counts)) == 1:
            self._run_operation(lambda pg: pg._allgather_base(as_bytes(whole), as_bytes(mine)))
            return
        slices = whole.split(list(counts))
        slices[self.group.rank].copy_(mine)
        for root, part in enumerate(slices):
            self._broadcast(part, root)

    def _broadcast(self, values: torch.Tensor, root: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._run_operation(lambda pg: pg.broadcast([as_bytes(values)], options))

    def _run_operation(self, start: Callable[[Any], Any]) -> None:
        """Start one operation, and return when the device has completed it."""
        self._check()
        self._calls += 1
        label = self.group.label
        try:
            self._finish(start(self._process_group))
        except BaseException as error:
            self._interrupt()  # after Ctrl-C, too: the operation would continue to write to the caller's tensors
            if isinstance(error, CollectiveError) or not isinstance(error, RuntimeError):
                self._failed(EngineError, f"a collective of {label} was interrupted by {type(error).__name__}")
                raise
            why = str(error).splitlines()[0]
            raise self._failed(EngineError, f"a collective of {label} failed: {why}") from error

    def _finish(self, work: Any) -> None:
        now = time.monotonic()
        drowsy, deadline = now + _YIELD_S, now + self.group.deadline_s
        while not work.is_completed():
            self._check()
            now = time.monotonic()
            if now > deadline:
                text = f"some member did not join a collective of {self.group.label}"
                raise self._failed(StallError, f"{text} in {self.group.deadline_s:g} s")
            if now < drowsy:
                os.sched_yield()
            else:
                self._aborted.wait(_NAP_S)  # not ``sleep``: an abort ends this wait
        self._check()  # an aborted operation also counts as complete, but has no result
        work.wait()  # returns at once: it orders the current stream after the operation, and raises errors of Gloo

    def _interrupt(self) -> None:
        process_group = self._process_group  # read once: `close` in another thread may reset it
        if process_group is not None:
            process_group.abort()

    # -- devices of tensors -------------------------------------------------------------------------------------------

    def _begin(self, array: Array) -> torch.device:
        """Device of this engine: that of the first CUDA tensor, or the default device of the process."""
        self._check()
        if self._device is None:
            owned = array.device.startswith("cuda") and isinstance(array.owner, torch.Tensor)
            self._device = array.owner.device if owned else self._default_device()
        return self._device

    def _default_device(self) -> torch.device:
        """GPU that the script has set as current, else one by the member's index on its host."""
        current, count = torch.cuda.current_device(), torch.cuda.device_count()
        here = self.group.hosts[self.group.rank]
        member = self.group.hosts[: self.group.rank].count(here)
        return torch.device("cuda", current or member % count)

    def _bring(self, array: Array, device: torch.device) -> torch.Tensor:
        """Values on the engine's device; a copy, or the tensor itself."""
        values = tensor(array)
        if values.is_cuda:
            torch.cuda.synchronize(values.device)  # any stream may still be computing them
        return values.to(device)

    def _room(self, array: Array, device: torch.device) -> torch.Tensor:
        """Tensor for a result: the array itself if it is on the device already."""
        values = tensor(array)
        return values if values.device == device else torch.empty_like(values, device=device)

    def _hand_back(self, result: torch.Tensor, array: Array) -> None:
        values = tensor(array)
        if values.data_ptr() != result.data_ptr():
            values.copy_(result)
        if result.is_cuda:
            torch.cuda.synchronize(result.device)

    # -- failures -----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._reason is not None:
            raise AbortError(self._reason)
        if self._failure is not None:
            kind, text = self._failure
            raise kind(text)

    def _failed(self, kind: type[CollectiveError], text: str) -> CollectiveError:
        self._failure = self._failure or (kind, text)
        return AbortError(self._reason) if self._reason is not None else kind(text)


def _connected(group: Group, exchange: Exchange, make: Callable[[], Any]) -> Any:
    """Make a process group by ``make``; raises ``EngineError`` on all members if one member fails."""
    process_group, failure = None, ""
    try:
        process_group = interruptible(group, "a process group", CONNECT_S + group.deadline_s, make)
    except (RuntimeError, OSError) as error:
        if group.broken.is_set():
            raise
        failure = str(error).splitlines()[0]
    # No member continues, and maybe closes or aborts, while another still connects.
    lost = [f"{group.name(member)}: {said.decode()}" for member, said in enumerate(exchange(failure.encode())) if said]
    if lost:
        raise EngineError(f"not all of {group.label} could connect to the others. {'; '.join(lost)}")
    return process_group


def _make_nccl(store: Any, group: Group) -> Any:
    nccl: Any = dist.ProcessGroupNCCL  # type: ignore[attr-defined,unused-ignore]
    options = nccl.Options()
    options._timeout = _FOREVER
    return nccl(store, group.rank, group.size, options)
