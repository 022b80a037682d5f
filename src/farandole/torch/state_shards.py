"""Assignment of parameter elements to ranks; each rank keeps the optimizer state of its elements (ZeRO-1).

    shards = StateShards(rank=0, size=2, splits=True)
    shards.cover(params)                        # the same in the same order on every rank
    with shards.in_place_of(optimizer.param_groups):
        step()                                  # of this rank's part
    shards.exchange(lane, params)               # every rank has all parts

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC20, section 5.1: with N
ranks, each keeps 1/N of the state, steps with that part, and gathers the other ranks' parameters.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias, final

import torch

from farandole.adapters.torch import adapter
from farandole.errors import UnsupportedError
from farandole.runtime.collectives.adapter import TensorSpec
from farandole.runtime.collectives.planned import PlannedLane

State: TypeAlias = dict[str, Any]
"""Optimizer state of one parameter, or of a part of it: tensors and numbers by name."""

ALIGNED = 64
"""Tensors are cut at multiples of this many elements: SIMD loops then group elements as in the whole tensor."""

CHUNK_BYTES = 2**24
"""Size of the memory for the exchange, for parameters of any size: sharding must not cost what it saves."""


def copy_holders(hosts: Sequence[str]) -> list[int]:
    """Rank that keeps the copy of each rank's part, by the hosts of the ranks: each keeps one, of another rank.

    >>> copy_holders(["a", "a", "a"]), copy_holders(["a", "a", "b", "b"]), copy_holders(["a", "a", "b"])
    ([1, 2, 0], [2, 3, 0, 1], [2, 0, 1])

    The copy is on another host for all ranks, unless a host has more than half of them: then for as many as possible.
    """
    size, most = len(hosts), max(Counter(hosts).values())
    by_host = sorted(range(size), key=lambda rank: (hosts.index(hosts[rank]), rank))
    shift = most if most < size else 1  # so far that no host reaches itself
    found = {rank: by_host[(place + shift) % size] for place, rank in enumerate(by_host)}
    return [found[rank] for rank in range(size)]


class ShardPiece(NamedTuple):
    """Elements ``begin`` to ``end - 1`` of a flat parameter; the rank ``owner`` keeps their state."""

    owner: int
    begin: int
    end: int


class Kept(NamedTuple):
    """A piece of a parameter, and the tensor that the optimizer steps instead of the parameter."""

    param: torch.Tensor
    piece: ShardPiece
    view: torch.Tensor


class _Travelling(NamedTuple):
    """A piece of a parameter, and its offset in the memory of its round."""

    param: torch.Tensor
    piece: ShardPiece
    offset: int


@final
class StateShards:
    """Parts of parameters among ``size`` ranks. ``splits``: a tensor may be cut, because elements are independent.

    ``holders``: the rank that keeps a copy of each rank's part; no copies if empty.
    """

    def __init__(self, rank: int, size: int, splits: bool, holders: Sequence[int] = ()) -> None:
        self.rank, self.size = rank, size
        self._splits, self._holders = splits, list(holders)
        self.parts = [rank, *(owner for owner, holder in enumerate(holders) if holder == rank)]
        """Parts whose state this rank keeps, by their owners: its own, and the one that it copies."""
        self._pieces: dict[torch.Tensor, list[ShardPiece]] = {}
        self._loads = [0] * size
        self._views: dict[tuple[torch.Tensor, int], torch.Tensor] = {}
        self._rounds: dict[torch.dtype, tuple[list[int], list[_Round]]] = {}
        self._memory: dict[torch.dtype, torch.Tensor] = {}
        self._lane: PlannedLane | None = None

    def cover(self, params: Iterable[torch.Tensor]) -> None:
        """Assign new parameters: in even parts, or whole, the largest first to the rank with the fewest elements."""
        new = [param for param in params if param not in self._pieces]
        if self._splits:
            self._cut(new)
            return
        for param in sorted(new, key=torch.numel, reverse=True):
            owner = min(range(self.size), key=self._loads.__getitem__)
            self._pieces[param] = [ShardPiece(owner, 0, param.numel())]
            self._loads[owner] += param.numel()

    def fits(self, rank: int, size: int, holders: Sequence[int]) -> bool:
        """True if this is the assignment for these ranks."""
        return (self.rank, self.size, self._holders) == (rank, size, list(holders))

    def kept(self, param: torch.Tensor, parts: Sequence[int] | None = None) -> Iterator[Kept]:
        """Pieces of a parameter whose state this rank keeps; only of ``parts``, if given."""
        wanted = self.parts if parts is None else parts
        for piece in self._pieces[param]:
            if piece.owner in wanted:
                yield Kept(param, piece, self._view(param, piece))

    def require_steady(self, params: Iterable[torch.Tensor]) -> None:
        """Raise on every rank, before the step, for a parameter that cannot be stepped in parts."""
        for param in params:
            is_cut = len(self._pieces[param]) > 1
            if is_cut and param.grad is not None and param.grad.layout is not torch.strided:
                raise UnsupportedError(
                    f"shard_state=True cuts a parameter of shape {tuple(param.shape)} whose gradient is sparse: pass "
                    "DistributedOptimizer(..., sparse_as_dense=True), or Embedding(..., sparse=False)"
                )
            if is_cut and not param.is_contiguous():
                raise UnsupportedError(
                    f"shard_state=True has cut a parameter of shape {tuple(param.shape)} that lies otherwise in memory "
                    "now: call model.to(memory_format=...) before DistributedOptimizer"
                )
            flat(param)

    @contextmanager
    def in_place_of(self, groups: Sequence[dict[str, Any]]) -> Iterator[None]:
        """Context in which the groups of an optimizer list only this rank's parts, each with its gradient."""
        try:
            with listed(groups, lambda param: [_graded(each) for each in self.kept(param)]):
                yield
        finally:
            for view in self._views.values():
                view.grad = None

    def exchange(
        self, lane: PlannedLane, params: Sequence[torch.Tensor], step: Callable[[list[Kept]], list[torch.Tensor]]
    ) -> None:
        """Exchange this rank's part of ``params`` with all ranks, as ``step`` returns the values of its pieces.

        Pieces whose state this rank keeps are left as they are.
        """
        if self._lane is not lane:
            self._lane, self._memory, self._rounds = lane, {}, {}
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for param in params:
            if param.numel():
                by_dtype.setdefault(param.dtype, []).append(param)
        for dtype, stepped in by_dtype.items():
            memory = self._memory_of(lane, dtype)
            key = list(map(id, stepped))
            if self._rounds.get(dtype, ([], []))[0] != key:
                self._rounds[dtype] = key, self._planned(stepped, memory.numel() // self.size)
            values = _Values([each for param in stepped for each in self.kept(param, [self.rank])], step)
            for each in self._rounds[dtype][1]:
                each.gather_pieces(lane, memory, self.rank, self.parts, values)

    # -- states -------------------------------------------------------------------------------------------------------

    def keep_own(self, states: dict[torch.Tensor, State]) -> None:
        """Reduce ``states`` of whole parameters to this rank's parts; values for all elements are kept in each part."""
        for param in [param for param in states if param in self._pieces]:
            state = states.pop(param)
            for _, piece, view in self.kept(param):
                states[view] = state if view is param else {k: _part(v, param, piece) for k, v in state.items()}

    def joined(self, param: torch.Tensor, parts: dict[int, State]) -> State:
        """Join the states of a parameter's parts, given by their first element, into the state of the whole."""
        pieces = self._pieces[param]
        states = [parts[piece.begin] for piece in pieces if piece.begin in parts]
        if len(pieces) == 1 or len(states) < len(pieces):
            return states[0]
        return {key: _whole([state[key] for state in states], param, pieces) for key in states[0]}

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _cut(self, params: Sequence[torch.Tensor]) -> None:
        total, first = sum(param.numel() for param in params), 0
        for param in params:
            numel = param.numel()
            ends = [min(max(total * (rank + 1) // self.size - first, 0), numel) for rank in range(self.size)]
            if not param.is_contiguous():  # not cut: its gradient may have another memory layout
                ends = [numel if end * 2 >= numel else 0 for end in ends]
            ends = [end if end == numel else end - end % ALIGNED for end in ends]
            bounds = zip(range(self.size), [0, *ends], ends, strict=False)
            pieces = [ShardPiece(*bound) for bound in bounds if bound[1] < bound[2]]
            if self._holders and param.is_contiguous():
                pieces = [small for piece in pieces for small in _small(piece)]
            self._pieces[param] = pieces or [ShardPiece(0, 0, 0)]  # a parameter without elements still has a state
            first += numel

    def _view(self, param: torch.Tensor, piece: ShardPiece) -> torch.Tensor:
        if piece.end - piece.begin == param.numel():
            return param
        flat = param.detach().view(-1)[piece.begin : piece.end]
        view = self._views.setdefault((param, piece.begin), flat)  # one object for all steps: it is the state's key
        if view.data_ptr() != flat.data_ptr():  # the script has replaced the parameter's memory
            view.data = flat
        return view

    def _memory_of(self, lane: PlannedLane, dtype: torch.dtype) -> torch.Tensor:
        """Memory of the lane's engine, with an equal share for each rank."""
        if dtype not in self._memory:
            width = torch.empty((), dtype=dtype).element_size()
            share = CHUNK_BYTES // width // self.size
            name = str(dtype).removeprefix("torch.")
            array = adapter.array(torch.empty(0, dtype=dtype))  # raises for a dtype that engines do not support
            found = lane.allocate(share * self.size * width).array(array.dtype)
            view = adapter.view(found, TensorSpec((share * self.size,), name, width))
            assert view is not None
            self._memory[dtype] = view
        return self._memory[dtype]

    def _planned(self, params: Sequence[torch.Tensor], share: int) -> list[_Round]:
        """Rounds in which each rank sends at most ``share`` elements."""
        filled, rounds = [0] * self.size, defaultdict[int, list[tuple[torch.Tensor, ShardPiece, int]]](list)
        for param in params:
            for owner, begin, end in self._pieces[param]:
                at = begin
                while at < end:
                    number, place = divmod(filled[owner], share)
                    count = min(end - at, share - place)
                    rounds[number].append((param, ShardPiece(owner, at, at + count), place))
                    filled[owner] += count
                    at += count
        return [_Round(rounds[number], self.size) for number in sorted(rounds)]


@final
class _Round:
    """One all-gather: pieces of parameters, in the order of their owners."""

    def __init__(self, given: Sequence[tuple[torch.Tensor, ShardPiece, int]], size: int) -> None:
        self._counts = [sum(p.end - p.begin for _, p, _ in given if p.owner == rank) for rank in range(size)]
        self._first = [sum(self._counts[:rank]) for rank in range(size)]
        self._given = [_Travelling(param, piece, self._first[piece.owner] + place) for param, piece, place in given]

    def gather_pieces(
        self, lane: PlannedLane, memory: torch.Tensor, rank: int, parts: Sequence[int], values: _Values
    ) -> None:
        """Copy this rank's pieces in, gather, and copy out the pieces that are not in ``parts``."""
        for param, piece, offset in self._given:
            if piece.owner == rank:
                memory[offset : offset + piece.end - piece.begin] = values.of(param, piece)
        begin, count = self._first[rank], self._counts[rank]
        whole = adapter.array(memory[: sum(self._counts)])
        lane.allgather("parameters", whole.slice(begin, count), whole, self._counts)
        for param, piece, offset in self._given:
            if piece.owner not in parts:
                flat(param)[piece.begin : piece.end] = memory[offset : offset + piece.end - piece.begin]


@final
class _Values:
    """Values of this rank's pieces, in their order, that ``step`` returns for a few pieces at a time."""

    def __init__(self, pieces: Sequence[Kept], step: Callable[[list[Kept]], list[torch.Tensor]]) -> None:
        self._pieces, self._step = deque(pieces), step
        self._ready: deque[tuple[Kept, torch.Tensor]] = deque()

    def of(self, param: torch.Tensor, part: ShardPiece) -> torch.Tensor:
        """Values of a part of the current piece, or of a later one."""
        while not self._ready or self._ready[0][0].param is not param or self._ready[0][0].piece.end < part.end:
            if self._ready:
                self._ready.popleft()
            if not self._ready:
                taken = self._taken()
                self._ready.extend(zip(taken, self._step(taken), strict=True))
        (_, piece, _), values = self._ready[0]
        return values[part.begin - piece.begin : part.end - piece.begin]

    def _taken(self) -> list[Kept]:
        taken, most = [self._pieces.popleft()], CHUNK_BYTES // 4
        while self._pieces and sum(each.view.numel() for each in [*taken, self._pieces[0]]) <= most:
            taken.append(self._pieces.popleft())
        return taken


@contextmanager
def listed(groups: Sequence[dict[str, Any]], parts: Callable[[torch.Tensor], list[torch.Tensor]]) -> Iterator[None]:
    """Context in which the groups of an optimizer list ``parts`` of each parameter in its place."""
    whole = [group["params"] for group in groups]
    found = [[part for param in params for part in parts(param)] for params in whole]
    try:
        for group, own in zip(groups, found, strict=True):
            group["params"] = own
        yield
    finally:
        for group, params in zip(groups, whole, strict=True):
            group["params"] = params


def gradient(kept: Kept) -> torch.Tensor | None:
    """Gradient of a piece, shaped as the tensor that the optimizer steps; ``None`` if there is none."""
    grad = kept.param.grad
    if grad is None or kept.view is kept.param:
        return grad
    return grad.detach().reshape(-1)[kept.piece.begin : kept.piece.end]


def _graded(kept: Kept) -> torch.Tensor:
    if kept.view is not kept.param:
        kept.view.grad = gradient(kept)
    return kept.view


def _small(piece: ShardPiece) -> Iterator[ShardPiece]:
    """Parts of ``piece`` of which a step aside may have a copy: they take no more memory than the exchange."""
    count = max(ALIGNED, CHUNK_BYTES // 4 - CHUNK_BYTES // 4 % ALIGNED)
    for begin in range(piece.begin, piece.end, count):
        yield ShardPiece(piece.owner, begin, min(begin + count, piece.end))


def flat(param: torch.Tensor) -> torch.Tensor:
    """View of all elements of ``param`` in memory order."""
    values = param.detach()
    if values.is_contiguous():
        return values.view(-1)
    if not torch.ops.aten.is_non_overlapping_and_dense(values):
        raise UnsupportedError(f"shard_state=True with a parameter of strides {values.stride()}: make it contiguous()")
    return values.as_strided((values.numel(),), (1,), values.storage_offset())


def _part(value: Any, param: torch.Tensor, piece: ShardPiece) -> Any:
    """A piece's part of a value of a parameter's state; the whole value if it is not one value per element."""
    if isinstance(value, torch.Tensor):
        of_elements = value.dim() > 0 and value.shape == param.shape
        return (value.reshape(-1)[piece.begin : piece.end] if of_elements else value).clone()
    return value


def _whole(values: Sequence[Any], param: torch.Tensor, pieces: Sequence[ShardPiece]) -> Any:
    of_elements = all(
        isinstance(value, torch.Tensor) and value.shape == (piece.end - piece.begin,)
        for value, piece in zip(values, pieces, strict=True)
    )
    return torch.cat(list(values)).view(param.shape) if of_elements else values[0]
