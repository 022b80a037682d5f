"""Parts of messages for the negotiated lane: entries (what a rank is ready for) and orders (what all are to do)."""

from __future__ import annotations

from typing import final

import msgspec

from farandole.collective import ReduceOp, Reduction


@final
class Signature(msgspec.Struct, frozen=True, array_like=True):
    """The collective that a rank means by a name, compared by ``negotiation``: shapes and splits by the kind's rule.

    A grouped call is one entry under one name: ``dtypes`` and ``shapes`` then hold one item per tensor, and so the
    group is ordered as one and its members are compared. BARRIER and JOIN have no tensors. ``splits`` are the rows for
    each member (ALLTOALL, () for even ones), the ranks of the new set (ADD_SET), or ``[id]`` (REMOVE_SET); these two
    and JOIN are submitted to process set 0. Joins are matched by their kind, whatever their names; ``Order.names``
    then holds one of them. A rank that has come and cannot do it says why in ``refusal``, and no more than the kind.
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
        """The reduction it names."""
        return Reduction(ReduceOp(self.op), self.prescale, self.postscale)


@final
class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One collective a rank is ready for: in full, or (``cached >= 0``) by the number its signature was given.

    A number stands for the signature this rank had under this name in the order that brought the number.
    """

    process_set: int
    name: str
    cached: int = -1
    signature: Signature | None = None


@final
class Order(msgspec.Struct, frozen=True, array_like=True):
    """A collective to execute now. ``names`` are executed together (fused); ``error``, if any, is raised for all.

    ``signatures[i]`` describes ``names[i]`` as one of the ranks gave it (joined ranks, which never submitted it, need
    that). ``dims[i]`` (ALLGATHER) holds the first dimensions, ``dims[i][member * tensors + tensor]``; ``splits[i]``
    (ALLTOALL) the rows sent, ``splits[i][sender * members + receiver]``; both count members by their index in the set,
    0 for joined ones. ``cached[i]`` is the number to submit ``names[i]`` by from now on (-1: in full). ``joined`` are
    ranks that contribute nothing. ``sequence`` grows from order to order over all sets, so a rank may see gaps.
    ``value`` is the id of the set (ADD_SET, REMOVE_SET) or the rank that joined last (JOIN). An order with an
    ``error`` goes to the ranks that submitted it, never to joined ones; ``error_kind`` is the class of
    ``farandole.errors`` to raise. With ``refused``, as a rank could not do it, it goes to all members: they count that.
    ``contributions`` are those of the members, by their index in the set (``b""`` for joined ones), if all sent them:
    no more is to be moved then.
    With ``direct``, a number that grows, the ranks may tell each other what comes under this name from now on.
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
