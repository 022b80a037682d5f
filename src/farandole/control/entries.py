"""Parts of messages for the negotiated lane: entries (collectives a rank is ready for), orders (what all execute)."""

from __future__ import annotations

from typing import final

import msgspec

from farandole.collective import ReduceOp, Reduction


@final
class Signature(msgspec.Struct, frozen=True, array_like=True):
    """Description of a collective on one rank; ``negotiation`` compares it between ranks by the rules of its kind.

    A grouped call is one entry under one name: ``dtypes`` and ``shapes`` then hold one item per tensor, and so the
    group is ordered as one and its members are compared. BARRIER and JOIN have no tensors. ``splits`` are the rows for
    each member (ALLTOALL, () for even splits), the ranks of the new set (ADD_SET), or ``[id]`` (REMOVE_SET); ADD_SET,
    REMOVE_SET and JOIN are submitted to process set 0. Joins are matched by kind, not by name; ``Order.names`` then
    holds one of their names. A rank that cannot execute the collective sends only the kind and a ``refusal`` (why).
    """

    kind: int
    dtypes: list[int]
    shapes: list[list[int]]
    op: int = 1
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    splits: list[int] = []
    device: str = "cpu"
    refusal: str = ""

    @property
    def how(self) -> Reduction:
        """Reduction with this operation and these scale factors."""
        return Reduction(ReduceOp(self.op), self.prescale, self.postscale)


@final
class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One collective that a rank is ready for: with its signature, or (``cached >= 0``) with the number of one.

    A number stands for the signature that this rank submitted under this name for the order that assigned the number.
    """

    process_set: int
    name: str
    cached: int = -1
    signature: Signature | None = None


@final
class Order(msgspec.Struct, frozen=True, array_like=True):
    """A collective to execute now. ``names`` are executed together (fused); ``error``, if any, is raised for all.

    ``signatures[i]`` describes ``names[i]`` as submitted by one of the ranks; joined ranks, which never submitted it,
    need that. ``dims[i]`` (ALLGATHER) holds the first dimensions, ``dims[i][member * tensors + tensor]``; ``splits[i]``
    (ALLTOALL) the rows sent, ``splits[i][sender * members + receiver]``; both count members by their index in the set,
    0 for joined ones. ``cached[i]`` is the number to submit ``names[i]`` by from now on (-1: in full). ``joined`` are
    ranks that contribute nothing. ``sequence`` grows from order to order over all sets, so a rank may see gaps.
    ``value`` is the id of the set (ADD_SET, REMOVE_SET) or the rank that joined last (JOIN). An order with an
    ``error`` goes to the ranks that submitted it, never to joined ranks; ``error_kind`` is the class of
    ``farandole.errors`` to raise. With ``refused`` (a rank could not execute it) the order goes to all members, because
    each counts it. ``contributions`` are the members' inputs, by index in the set (``b""`` for joined ranks), if all
    sent theirs; then no engine moves any data. ``direct`` is the number of a grant (it grows): from now on the ranks
    may run this name on the peer lane.
    """

    process_set: int
    sequence: int
    kind: int
    names: list[str]
    signatures: list[Signature]
    dims: list[list[int]] = []
    splits: list[list[int]] = []
    cached: list[int] = []
    joined: list[int] = []
    error: str = ""
    error_kind: str = ""
    value: int = -1
    refused: bool = False
    contributions: list[bytes] = []
    direct: int = 0
