"""Buckets: every gradient has its place, whatever there is."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from farandole.collective import DType
from farandole.gradients.buckets import ALIGNMENT_BYTES, BucketLayout, Piece, is_lone, lay_out

pieces_strategy = st.lists(
    st.none()
    | st.builds(
        Piece,
        st.integers(0, 400),
        st.sampled_from([DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.COMPLEX128]),
        st.sampled_from(["cpu", "cuda:0"]),
        st.integers(-1, 2),
    ),
    max_size=30,
)


def spans(layout: BucketLayout) -> list[tuple[int, int]]:
    """First byte and byte past the end of every piece."""
    return [
        (b.start + s.offset * b.dtype.itemsize, b.start + (s.offset + s.count) * b.dtype.itemsize)
        for b in layout.buckets
        for s in b.slots
    ]


@given(pieces_strategy, st.integers(64, 4096))
def test_every_piece_has_one_place_of_its_own(pieces: list[Piece | None], bucket_bytes: int) -> None:
    layout = lay_out(pieces, bucket_bytes)
    placed = sorted(slot.piece for bucket in layout.buckets for slot in bucket.slots)
    assert placed == [i for i, piece in enumerate(pieces) if piece is not None]
    for bucket in layout.buckets:
        for slot in bucket.slots:
            piece = pieces[slot.piece]
            assert piece is not None
            assert (piece.count, piece.dtype, piece.device) == (slot.count, bucket.dtype, bucket.device)
    taken = sorted(span for span in spans(layout) if span[0] < span[1])
    assert all(end <= begin for (_, end), (begin, _) in pairwise(taken))
    assert all(begin % ALIGNMENT_BYTES == 0 for begin, _ in taken)
    assert not taken or taken[-1][1] <= layout.nbytes


@given(pieces_strategy, st.integers(64, 4096))
def test_buckets_are_no_larger_than_asked(pieces: list[Piece | None], bucket_bytes: int) -> None:
    for bucket in lay_out(pieces, bucket_bytes).buckets:
        first = pieces[bucket.slots[0].piece]
        assert first is not None
        assert bucket.nbytes <= bucket_bytes or len(bucket.slots) == 1 or first.group >= 0


@given(pieces_strategy, st.integers(64, 4096))
def test_a_group_is_one_bucket_per_dtype_and_device(pieces: list[Piece | None], bucket_bytes: int) -> None:
    seen: dict[tuple[object, ...], int] = {}
    for number, bucket in enumerate(lay_out(pieces, bucket_bytes).buckets):
        groups = {(p.group, p.dtype, p.device) for s in bucket.slots if (p := pieces[s.piece]) is not None}
        (group,) = groups
        if group[0] >= 0:
            assert seen.setdefault(group, number) == number


@given(pieces_strategy, st.integers(64, 4096))
def test_the_last_gradients_come_first(pieces: list[Piece | None], bucket_bytes: int) -> None:
    buckets = lay_out(pieces, bucket_bytes).buckets
    complete = [bucket.slots[-1].piece for bucket in buckets]
    assert complete == sorted(complete, reverse=True)
    for bucket in buckets:
        order = [slot.piece for slot in bucket.slots]
        assert order == sorted(order, reverse=True)


def test_nothing_needs_nothing() -> None:
    assert lay_out([], 1024) == lay_out([None], 1024) == BucketLayout((), 0)


@given(pieces_strategy, st.integers(64, 4096), st.integers(1, 4096))
def test_large_pieces_are_reduced_where_they_lie(
    pieces: list[Piece | None], bucket_bytes: int, lone_bytes: int
) -> None:
    layout = lay_out(pieces, bucket_bytes, lone_bytes)
    lone = {bucket.slots[0].piece for bucket in layout.buckets if bucket.lone}
    assert lone == {i for i, piece in enumerate(pieces) if piece is not None and is_lone(piece, lone_bytes)}
    rest = [None if i in lone else piece for i, piece in enumerate(pieces)]
    assert sorted(b.nbytes for b in layout.buckets if not b.lone) == sorted(
        b.nbytes for b in lay_out(rest, bucket_bytes).buckets
    )
    assert layout.nbytes == lay_out(rest, bucket_bytes).nbytes
    ends = [bucket.slots[-1].piece for bucket in layout.buckets]
    assert ends == sorted(ends, reverse=True), "the first bucket is complete first"
