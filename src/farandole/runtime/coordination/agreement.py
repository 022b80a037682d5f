"""Rules for comparing the signatures that ranks submit under one name.

    >>> mine = Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[3]])
    >>> yours = Signature(Kind.ALLREDUCE, [DType.INT64], [[3]])
    >>> settle("loss", 0, (0, 1), SignaturesByRank.of({0: mine, 1: yours}), ["a", "b"]).error
    "allreduce 'loss': the ranks differ in the dtype: rank 0 on a said float32; rank 1 on b said int64"

Shapes and splits are compared by the rules of the kind; texts name each rank and its host.

Signatures that ranks submitted under one name: each signature once, with all its ranks.

    >>> three, four = Signature(1, [8], [[3]]), Signature(1, [8], [[4]])
    >>> said = SignaturesByRank.of({0: three, 1: four, 2: three})
    >>> [(signature.shapes, list(ranks)) for signature, ranks in said]
    [([[3]], [0, 2]), ([[4]], [1])]

Ranks mostly submit the same signature, so the work on signatures takes no longer for many ranks than for two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import msgspec

from farandole.collective import DType, Kind, ReduceOp
from farandole.control.messages import Signature
from farandole.runtime.coordination.rank_names import by_saying, name_rank, shorten
from farandole.runtime.coordination.rank_set import NOBODY, RankSet


@final
class SignaturesByRank:
    """Signatures with their ranks, in the order in which each was first submitted."""

    __slots__ = ("_said", "ranks")

    def __init__(self) -> None:
        self.ranks = NOBODY
        """All ranks that have submitted."""
        self._said: dict[bytes, tuple[Signature, RankSet]] = {}

    @classmethod
    def of(cls, by_rank: Mapping[int, Signature]) -> SignaturesByRank:
        """Build it from the signature of each rank."""
        statements = cls()
        for rank, signature in by_rank.items():
            statements.add(RankSet.only(rank), signature)
        return statements

    def add(self, ranks: RankSet, signature: Signature) -> None:
        """Add ranks that submitted ``signature``; none of them may have submitted before."""
        key = msgspec.msgpack.encode(signature)
        known, before = self._said.get(key, (signature, NOBODY))
        self._said[key] = known, before | ranks
        self.ranks |= ranks

    def update(self, others: SignaturesByRank, ranks: RankSet) -> None:
        """Add the signatures of ``ranks`` in ``others``."""
        for signature, whose in others:
            if both := whose & ranks:
                self.add(both, signature)

    @property
    def first(self) -> Signature:
        """Signature that was submitted first; there must be one."""
        return next(iter(self))[0]

    def by_rank(self) -> dict[int, Signature]:
        """Signature of each rank, in ascending order of the ranks."""
        return dict(sorted((rank, signature) for signature, ranks in self for rank in ranks))

    def __iter__(self) -> Iterator[tuple[Signature, RankSet]]:
        return iter(self._said.values())

    def __len__(self) -> int:
        return len(self._said)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SignaturesByRank) and self._said == other._said

    __hash__ = None  # type: ignore[assignment]


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """Outcome of the comparison: the work of the members under one name, or the ``error`` that they raise.

    ``fusion`` is the key that another all-reduce must share to be fused with this one (``None``: it is never fused).
    """

    signature: Signature
    dims: list[int] = field(default_factory=list)
    splits: list[int] = field(default_factory=list)
    fusion: tuple[object, ...] | None = None
    nbytes: int = 0
    error: str = ""
    error_kind: str = ""


def settle(
    name: str,
    process_set: int,
    members: Collection[int],
    statements: SignaturesByRank,
    hosts: Sequence[str],
) -> Plan:
    """Compare the ``statements``; a member without a statement has joined and contributes nothing."""
    first = statements.first
    error = _difference(statements, hosts) or _impossibility(members, statements, hosts)
    if error:
        return Plan(first, error=f"{title(first.kind, name, process_set)}: {error}", error_kind="MismatchError")
    kind = Kind(first.kind)
    return Plan(
        first,
        dims=_dims(members, statements) if kind is Kind.ALLGATHER else [],
        splits=_split_matrix(members, statements) if kind is Kind.ALLTOALL else [],
        fusion=_fusion(process_set, first) if kind is Kind.ALLREDUCE and len(set(first.dtypes)) == 1 else None,
        nbytes=sum(map(_nbytes, first.dtypes, first.shapes)),
    )


def title(kind: int, name: str, process_set: int) -> str:
    """Name of a collective in texts: ``allreduce 'loss'``, with its process set unless that is the global one.

    The verb, with which the name on the wire begins, is not repeated.
    """
    verb = Kind(kind).label
    suffix = f" in process set {process_set}" if process_set else ""
    return f"{verb} {shorten(name.removeprefix(verb + '.'))!r}{suffix}"


def malformed(signature: Signature | None) -> str:
    """Reason why a signature is invalid (numbers that are no kind, operation, dtype or size); "" if it is valid."""
    if signature is None:
        return "neither a signature nor a number for one"
    if signature.kind not in _KINDS:
        return f"{signature.kind} is no kind of collective"
    if signature.op not in _OPS:
        return f"{signature.op} is no reduce operation"
    if unknown := [d for d in signature.dtypes if not 0 <= d < len(DType)]:
        return f"{unknown[0]} is no dtype"
    if len(signature.dtypes) != len(signature.shapes):
        return f"{len(signature.dtypes)} dtypes for {len(signature.shapes)} shapes"
    if not signature.dtypes and not signature.refusal and signature.kind in _KINDS_WITH_TENSORS:
        return "no tensors"
    if any(n < 0 for sizes in (*signature.shapes, signature.splits) for n in sizes):
        return "a negative size"
    return ""


class _Aspect(NamedTuple):
    """Property that is compared: its name, and a function to a rank's values as texts, per call or per tensor."""

    label: str
    say: Callable[[Signature], list[str]]


_KIND = _Aspect("the operation", lambda s: [Kind(s.kind).label])
_ABILITY = _Aspect("what they can do", lambda s: [f"it cannot: {s.refusal}" if s.refusal else "it can"])
_DEVICE = _Aspect("the device", lambda s: [s.device.partition(":")[0]])
_COUNT = _Aspect("the members of the group", lambda s: [f"{len(s.shapes)} tensor{'s' * (len(s.shapes) != 1)}"])
_DTYPE = _Aspect("the dtype", lambda s: [DType(d).label for d in s.dtypes])
_SHAPE = _Aspect("the shape", lambda s: [str(shape) for shape in s.shapes])
_TAIL = _Aspect("the shape after dimension 0", lambda s: [_tail(shape) for shape in s.shapes])
_OP = _Aspect("the reduce operation", lambda s: [ReduceOp(s.op).label])
_PRESCALE = _Aspect("the prescale factor", lambda s: [repr(s.prescale)])
_POSTSCALE = _Aspect("the postscale factor", lambda s: [repr(s.postscale)])
_ROOT = _Aspect("the root rank", lambda s: [str(s.root)])
_RANKS = _Aspect("the ranks of the process set", lambda s: [str(sorted(s.splits))])
_ID = _Aspect("the process set", lambda s: [str(s.splits)])

_TENSOR = (_KIND, _ABILITY, _DEVICE, _COUNT, _DTYPE)
_REDUCTION = (*_TENSOR, _SHAPE, _OP, _PRESCALE, _POSTSCALE)

_ASPECTS: dict[Kind, tuple[_Aspect, ...]] = {
    Kind.ALLREDUCE: _REDUCTION,
    Kind.ALLGATHER: (*_TENSOR, _TAIL),
    Kind.BROADCAST: (*_TENSOR, _SHAPE, _ROOT),
    Kind.ALLTOALL: (*_TENSOR, _TAIL),
    Kind.REDUCESCATTER: _REDUCTION,
    Kind.BARRIER: (_KIND, _ABILITY),
    Kind.JOIN: (_KIND,),
    Kind.ADD_SET: (_KIND, _ABILITY, _RANKS),
    Kind.REMOVE_SET: (_KIND, _ABILITY, _ID),
}
_KINDS = frozenset(Kind)
_REDUCTIONS = frozenset({Kind.ALLREDUCE, Kind.REDUCESCATTER})
_OPS = frozenset(ReduceOp)
_KINDS_WITH_TENSORS = frozenset(kind for kind, aspects in _ASPECTS.items() if _DTYPE in aspects)


def _difference(statements: SignaturesByRank, hosts: Sequence[str]) -> str:
    """Text on the first property in which the ranks differ, with each rank's value; "" if there is none."""
    if len(statements) == 1:
        return ""
    for aspect in _ASPECTS[Kind(statements.first.kind)]:
        texts = [aspect.say(signature) for signature, _ in statements]
        for tensor, said in enumerate(zip(*texts, strict=True)):
            if len(set(said)) > 1:
                which = f" of tensor {tensor}" if len(texts[0]) > 1 else ""
                whose = zip(said, statements, strict=True)
                by_rank = {rank: saying for saying, (_, ranks) in whose for rank in ranks}
                return f"the ranks differ in {aspect.label}{which}: {by_saying(by_rank, hosts)}"
    return ""


def _impossibility(members: Collection[int], statements: SignaturesByRank, hosts: Sequence[str]) -> str:
    """Reason why a collective is impossible although all ranks agree; "" if it is possible."""
    first = statements.first
    if first.refusal:
        return f"no rank can do it: {first.refusal}"
    if first.kind == Kind.BROADCAST and first.root not in members:
        return f"the root is rank {first.root}, which is no member; the members are {list(members)}"
    if first.kind == Kind.BROADCAST and first.root not in statements.ranks:
        return f"the root is {name_rank(first.root, hosts)}, which has called join()"
    if first.kind == Kind.REDUCESCATTER and not all(first.shapes):
        return "a tensor without dimensions cannot be scattered: give it at least one"
    is_joined = len(statements.ranks) < len(members)
    if is_joined and first.kind in (Kind.ADD_SET, Kind.REMOVE_SET):
        joined = _joined(members, statements, hosts)
        return f"every rank has to know of it, and {joined} has called join(), which has not returned yet"
    if is_joined and (factor := _without_identity(first)):
        joined = _joined(members, statements, hosts)
        return f"{factor} cannot do without {joined}, which has called join(): multiply the tensor before the call"
    if first.kind == Kind.ALLTOALL:
        wrong = {
            rank: text
            for signature, ranks in statements
            if (text := _wrong_splits(signature, len(members)))
            for rank in ranks
        }
        return "; ".join(f"{name_rank(rank, hosts)}: {text}" for rank, text in sorted(wrong.items()))
    return ""


def _joined(members: Collection[int], statements: SignaturesByRank, hosts: Sequence[str]) -> str:
    """Name of the first member that has joined."""
    return name_rank(next(rank for rank in members if rank not in statements.ranks), hosts)


def _without_identity(signature: Signature) -> str:
    """Text on a prescale factor for which no contribution leaves the result unchanged; "" if the factor is harmless.

    The contribution of a joined rank is scaled, too: the ones of a product become the factor, and the zeros of a sum
    become NaN if the factor is infinite.
    """
    if signature.kind not in _REDUCTIONS or all(dtype == DType.BOOL for dtype in signature.dtypes):
        return ""
    is_product = signature.op == ReduceOp.PRODUCT and signature.prescale != 1.0
    is_lost = is_product or math.isinf(signature.prescale)
    return f"{ReduceOp(signature.op).label} with the prescale factor {signature.prescale:g}" if is_lost else ""


def _wrong_splits(signature: Signature, members: int) -> str:
    if len(signature.shapes) != 1 or not signature.shapes[0]:
        return "takes one tensor of at least one dimension"
    rows, splits = signature.shapes[0][0], signature.splits
    if not splits and rows % members:
        return f"{rows} rows cannot be split evenly among {members} ranks: give splits"
    if splits and len(splits) != members:
        return f"{len(splits)} splits for {members} ranks: give one for each"
    if splits and sum(splits) != rows:
        return f"the splits {shorten(str(splits))} add up to {sum(splits)}, but dimension 0 has {rows} rows"
    return ""


def _dims(members: Collection[int], statements: SignaturesByRank) -> list[int]:
    """First dimensions, by member; a tensor without dimensions counts as one row."""
    signatures, tensors = statements.by_rank(), len(statements.first.shapes)
    dims: list[int] = []
    for rank in members:
        dims += [shape[0] if shape else 1 for shape in signatures[rank].shapes] if rank in signatures else [0] * tensors
    return dims


def _split_matrix(members: Collection[int], statements: SignaturesByRank) -> list[int]:
    """Rows sent, ``[sender * members + receiver]``."""
    size = len(members)
    signatures = statements.by_rank()
    matrix: list[int] = []
    for rank in members:
        signature = signatures.get(rank)
        if signature is None:
            matrix += [0] * size
        else:
            matrix += signature.splits or [signature.shapes[0][0] // size] * size
    return matrix


def _fusion(process_set: int, signature: Signature) -> tuple[object, ...] | None:
    """Key that fused all-reduces share; ``None`` for Adasum, which weights each tensor by its own dot products."""
    if signature.op == ReduceOp.ADASUM:
        return None
    device = signature.device.partition(":")[0]
    return process_set, signature.dtypes[0], signature.op, signature.prescale, signature.postscale, device


def _nbytes(dtype: int, shape: list[int]) -> int:
    return math.prod(shape) * DType(dtype).itemsize


def _tail(shape: list[int]) -> str:
    return str(["*", *shape[1:]]).replace("'", "") if shape else "[]"
