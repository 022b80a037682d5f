"""``FarandoleGroup``: a process group of ``torch.distributed`` whose collectives run on a Farandole engine.

The method names that PyTorch calls depend on its version: up to 2.12 ``_allgather_base``, ``_reduce_scatter_base`` and
``alltoall_base``, from 2.13 on ``all_gather_single``, ``reduce_scatter_single`` and ``all_to_all_single``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, final

import torch
import torch.distributed as dist

from farandole.errors import StallError, UnsupportedError, UsageError
from farandole.torch.distributed.by_device import backends_of, routed
from farandole.torch.distributed.lane import GroupCall, GroupLane
from farandole.torch.distributed.mailbox import ANY, Mailbox, MessageLabel
from farandole.torch.distributed.sparse import reduce_sparse
from farandole.torch.distributed.tensors import (
    BITWISE,
    FlatTensor,
    combined,
    counts_of,
    gather_parts,
    joined,
    kind_of,
    reduction_of,
    require_fit,
    single,
    spread,
)
from farandole.torch.distributed.work import DoneWork, QueuedWork

Tensors: TypeAlias = Sequence[torch.Tensor]
Lists: TypeAlias = Sequence[Tensors]


_ProcessGroup: Any = dist.ProcessGroup
"""Base class; its signatures differ between versions of PyTorch."""


@final
@routed
class FarandoleGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group; PyTorch calls its methods, programs the functions of ``torch.distributed``."""

    supports_splitting: ClassVar[bool] = False
    supports_coalescing: ClassVar[bool] = False
    supports_time_estimate: ClassVar[bool] = False

    def __init__(self, rank: int, size: int, lane: GroupLane, store: Any, mailbox: Mailbox | None) -> None:
        super().__init__(rank, size)
        self._mailbox = mailbox
        self._lane, self._engine, self._store = lane, lane.engine, store
        self._name = self._description = ""
        self._here, self._many = rank, size

    @cached_property
    def others(self) -> dict[str, Any]:
        """Backends configured for other devices: the name, or the group once it is made."""
        return backends_of(self)

    # -- properties that PyTorch reads --------------------------------------------------------------------------------

    @property
    def group_name(self) -> str:
        """Name of the group for functional collectives."""
        return self._name

    @property
    def group_desc(self) -> str:
        """Description of the group."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def _get_backend(self, _: torch.device) -> FarandoleGroup:
        return self

    def name(self) -> str:
        """Name of the backend."""
        return "farandole"

    _get_backend_name = getBackendName = name  # noqa: N815 (DDP's logger calls it)

    def get_group_store(self) -> Any:
        """Store of the group."""
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing, because all members count collectives from 0."""

    def _get_sequence_number_for_group(self) -> int:
        return self._lane.count

    # -- reductions ---------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """Reduce a tensor of each member, in place."""
        return self._reduced([single(tensors, "all_reduce")], opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """Reduce several tensors of each member, in place."""
        return self._reduced(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        """Reduce a tensor of each member into the root's tensor."""
        tensor = single(tensors, "reduce")
        mine = tensor if opts.rootRank == self._here else tensor.detach().clone()
        return self._reduced([mine], opts, f"reduce to {opts.rootRank}", results=[tensor])

    def _reduced(self, tensors: Tensors, opts: Any, verb: str = "all_reduce", results: Tensors = ()) -> dist.Work:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        if tensors[0].is_sparse:
            return self._reduced_sparse(tensors, op, opts)
        given = [FlatTensor(tensor) for tensor in tensors]
        if kind_of(op) in BITWISE and not any(tensor.is_floating_point() for tensor in tensors):
            return self._combined(given, op, opts, verb)
        how = reduction_of(op, tensors[0].dtype)
        engine = self._engine

        def do() -> None:
            for each in given:
                engine.allreduce(each.array, how)
                each.written()

        return self._run_collective(f"{verb} {how.op.label}", given, do, results or tensors, opts)

    def _reduced_sparse(self, tensors: Tensors, op: Any, opts: Any) -> dist.Work:
        def do() -> None:
            for tensor in tensors:
                tensor.copy_(reduce_sparse(self._engine, tensor, op))

        return self._run_collective("all_reduce", [], do, tensors, opts, f"sparse {tensors[0].dtype}")

    def _combined(self, given: Sequence[FlatTensor], op: Any, opts: Any, verb: str) -> dist.Work:
        engine = self._engine

        def do() -> None:
            for each in given:
                parts = [torch.empty_like(each.memory) for _ in range(self._many)]
                gather_parts(engine, each, parts)
                each.memory.copy_(combined(op, parts))
                each.written()

        return self._run_collective(f"{verb} {kind_of(op).name}", given, do, [each.tensor for each in given], opts)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> dist.Work:
        """Reduce a tensor of each member, and keep this member's part of the result."""
        return self._scattered([output], [given], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, given: Tensors, opts: Any = None) -> dist.Work:
        """Reduce several tensors, and keep this member's parts of the results."""
        return self._scattered(outputs, given, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, lists: Lists, opts: Any = None) -> dist.Work:
        """Reduce lists with one tensor for each member, and keep this member's tensor."""
        output = single(outputs, "reduce_scatter")
        return self._scattered([output], [joined(lists[0])], opts, [part.numel() for part in lists[0]])

    def _scattered(self, outputs: Tensors, given: Tensors, opts: Any, counts: Sequence[int] = ()) -> dist.Work:
        how = reduction_of(dist.ReduceOp.SUM if opts is None else opts.reduceOp, given[0].dtype)
        pairs = [(FlatTensor(output), FlatTensor(each)) for output, each in zip(outputs, given, strict=True)]
        for output, each in pairs:
            own = counts[self._here] if counts else each.array.count // self._many
            require_fit("reduce_scatter", output.tensor, own, each.tensor)
            if own * self._many != each.array.count and not counts:
                raise UsageError(f"reduce_scatter: {each.array.count} elements cannot be split among {self._many}")
        engine = self._engine

        def do() -> None:
            for output, each in pairs:
                engine.reducescatter(each.array, output.array, counts or [output.array.count] * self._many, how)
                output.written()

        return self._run_collective(f"reduce_scatter {how.op.label}", [each for _, each in pairs], do, outputs, opts)

    # -- copies -------------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        """Copy the root's tensor into the tensors of all members."""
        tensor = single(tensors, "broadcast")
        given, root, engine = FlatTensor(tensor), opts.rootRank, self._engine

        def do() -> None:
            engine.broadcast(given.array, root)
            if root != self._here:
                given.written()

        return self._run_collective(f"broadcast of {root}", [given], do, [tensor], opts)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> dist.Work:
        """Concatenate the tensors of all members."""
        return self._gathered([output], [given], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, given: Tensors, opts: Any = None) -> dist.Work:
        """Concatenate several tensors of all members."""
        return self._gathered(outputs, given, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gathered(self, outputs: Tensors, given: Tensors, opts: Any) -> dist.Work:
        pairs = [(FlatTensor(output), FlatTensor(each)) for output, each in zip(outputs, given, strict=True)]
        for output, each in pairs:
            require_fit("all_gather", output.tensor, each.array.count * self._many, each.tensor)
        engine = self._engine

        def do() -> None:
            for output, each in pairs:
                engine.allgather(each.array, output.array, [each.array.count] * self._many)
                output.written()

        return self._run_collective("all_gather", [each for _, each in pairs], do, outputs, opts)

    def allgather(self, lists: Lists, given: Tensors, opts: Any = None) -> dist.Work:
        """Gather all members' tensors into a list on each member."""
        return self._gathered_in_lists(lists, [single(given, "all_gather")], opts)

    def allgather_coalesced(self, lists: Lists, given: Tensors, opts: Any = None) -> dist.Work:
        """Gather several tensors of all members into lists on each member: one list for each sender."""
        turned = [list(parts) for parts in zip(*lists, strict=True)]
        return self._gathered_in_lists(turned, given, opts)

    def _gathered_in_lists(self, lists: Lists, given: Tensors, opts: Any) -> dist.Work:
        flat, engine = [FlatTensor(each) for each in given], self._engine
        for each, parts in zip(flat, lists, strict=True):
            require_fit("all_gather", parts[self._here], each.array.count, each.tensor)

        def do() -> None:
            for each, parts in zip(flat, lists, strict=True):
                gather_parts(engine, each, parts)

        results = [part for parts in lists for part in parts]
        whole = sum(part.numel() for part in results)
        return self._run_collective("all_gather", flat, do, results, opts, f"{whole} {given[0].dtype}")

    def gather(self, lists: Lists, given: Tensors, opts: Any) -> dist.Work:
        """Gather all members' tensors into a list on the root."""
        tensor, root = single(given, "gather"), opts.rootRank
        parts = list(lists[0]) if root == self._here else []
        if parts:
            require_fit("gather", parts[root], tensor.numel(), tensor)
        mine, counts = FlatTensor(tensor), [part.numel() for part in parts] or [0] * self._many
        sent = [mine.array.count if i == root else 0 for i in range(self._many)]

        def do() -> None:
            whole = FlatTensor(mine.memory.new_empty(sum(counts)))
            self._engine.alltoall(mine.array, sent, whole.array, counts)
            spread(whole.memory, parts)

        return self._run_collective(f"gather to {root}", [mine], do, parts, opts, str(tensor.dtype))

    def scatter(self, outputs: Tensors, lists: Lists, opts: Any) -> dist.Work:
        """Send each member its tensor of the root's list."""
        output, root = single(outputs, "scatter"), opts.rootRank
        parts = lists[0] if root == self._here else []
        if parts:
            require_fit("scatter", output, parts[root].numel(), parts[root])
        mine, sent = FlatTensor(output), [part.numel() for part in parts] or [0] * self._many
        whole = FlatTensor(joined(parts) if parts else output.detach().new_empty(0))
        counts = [mine.array.count if i == root else 0 for i in range(self._many)]

        def do() -> None:
            self._engine.alltoall(whole.array, sent, mine.array, counts)
            mine.written()

        return self._run_collective(f"scatter of {root}", [mine], do, [output], opts, str(output.dtype))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        """Send rows of a tensor to each member; without splits, the same number to each."""
        into, out_of = FlatTensor(output), FlatTensor(given)
        received, sent = counts_of(output, output_splits, self._many), counts_of(given, input_splits, self._many)
        require_fit("all_to_all", output, sum(received), given)

        def do() -> None:
            self._engine.alltoall(out_of.array, sent, into.array, received)
            into.written()

        # Without the numbers of elements, which may differ between members.
        return self._run_collective("all_to_all", [], do, [output], opts, str(out_of.memory.dtype))

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, given: Tensors, opts: Any = None) -> dist.Work:
        """Send a tensor to each member."""
        sent, received = [part.numel() for part in given], [part.numel() for part in outputs]
        out_of = FlatTensor(joined(given))

        def do() -> None:
            into = FlatTensor(out_of.memory.new_empty(sum(received)))
            self._engine.alltoall(out_of.array, sent, into.array, received)
            spread(into.memory, outputs)

        return self._run_collective("all_to_all", [], do, outputs, opts, str(out_of.memory.dtype))

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, to: int, tag: int) -> dist.Work:
        """Send a tensor to a member. The data is copied: the tensor may be overwritten at once."""
        given = FlatTensor(single(tensors, "send"))
        label, rank = MessageLabel(self._lane.number, self._here, tag), self._engine.group.ranks[to]
        self._post("send").send(label, rank, given.memory)
        return DoneWork(tensors)

    def recv(self, tensors: Tensors, sender: int, tag: int) -> dist.Work:
        """Receive a tensor from a member."""
        return self._receive(single(tensors, "recv"), MessageLabel(self._lane.number, sender, tag))

    def recv_anysource(self, tensors: Tensors, tag: int) -> dist.Work:
        """Receive a tensor from any member."""
        return self._receive(single(tensors, "recv"), MessageLabel(self._lane.number, ANY, tag))

    def _receive(self, tensor: torch.Tensor, letter: MessageLabel) -> dist.Work:
        group, work = self._engine.group, QueuedWork([tensor])
        self._post("recv").receive(letter, tensor, work, group, group.deadline_s)
        return work

    def _post(self, verb: str) -> Mailbox:
        if self._mailbox is None:
            raise UsageError(f"{verb}: this process is alone in the job")
        return self._mailbox

    # -- the rest -----------------------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all members."""
        return self._run_collective("barrier", [], self._engine.barrier, [], opts)

    def monitored_barrier(self, timeout: dt.timedelta | None = None, wait_all_ranks: bool = False, **_: Any) -> None:
        """Wait for all members; raises ``StallError``, which names the first missing member, or all missing ones."""
        limit_s = self._engine.group.deadline_s if timeout is None else timeout.total_seconds()
        absent = self._post("monitored_barrier").roll_call(self._lane.number, self._engine.group, limit_s)
        if absent:
            named = ", ".join(map(self._engine.group.name, absent if wait_all_ranks else absent[:1]))
            raise StallError(f"rank {self._here} timed out in monitored_barrier after {limit_s:g} s: without {named}")

    def abort(self) -> None:
        """Abort all waits in this group, on all members."""
        self._engine.abort(f"abort() was called on rank {self._here} of {self._lane.label}")

    def shutdown(self) -> None:
        """Finish pending collectives, and free all resources."""
        for each in self.others.values():
            if not isinstance(each, str):
                each.shutdown()
        self._lane.drain()
        self._lane.close()

    def set_timeout(self, timeout: dt.timedelta) -> None:
        """Raise ``UnsupportedError``: pass the time-out to ``init_process_group`` or ``new_group``."""
        raise UnsupportedError(f"set_timeout({timeout}): pass timeout= to init_process_group() or new_group()")

    def _start_coalescing(self, _: torch.device) -> None:
        """Do nothing, because each collective begins when it is called."""

    def _end_coalescing(self, _: torch.device) -> dist.Work:
        return self._lane.last

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        self._lane.drain()

    def _run_collective(
        self,
        verb: str,
        given: Sequence[FlatTensor],
        do: Callable[[], object],
        results: Tensors,
        opts: Any,
        detail: str = "",
    ) -> dist.Work:
        shapes = detail or " ".join(f"{each.array.count} {each.array.dtype.label}" for each in given[:2])
        is_async = opts is None or getattr(opts, "asyncOp", True)
        return self._lane.run_call(GroupCall(f"{verb} {shapes}", do), results, is_async)
