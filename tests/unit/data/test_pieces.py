"""Pieces: all bytes once, cut where samples begin, with blocks that make up each piece."""

from __future__ import annotations

import itertools
import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.storage import pieces as module
from farandole.data.storage.fields import Field
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import MOST_BLOCK, Pieces
from tests.support.data.staging_sets import brute_bounds, manifest_of, manifests

LIMITS = st.sampled_from([(1000, 100), (100_000, 5000), (4096, 4096), (10**9, 10**9), (50, 1)])


@given(manifests(), LIMITS)
def test_pieces_cover_all_bytes_once(manifest: Manifest, limits: tuple[int, int]) -> None:
    pieces = Pieces.of(manifest, *limits)
    assert int(pieces.sizes.sum()) == manifest.nbytes
    assert (pieces.sizes > 0).all() or manifest.nbytes == 0
    seen = [0] * len(manifest.sizes)
    for piece in range(len(pieces)):
        extents = pieces.extents(piece)
        assert sum(nbytes for _, _, nbytes in extents) == pieces.sizes[piece]
        for file, offset, nbytes in extents:
            assert offset == seen[file]
            assert nbytes > 0
            seen[file] += nbytes
        parts = [nbytes < manifest.sizes[file] for file, _, nbytes in extents]
        assert not any(parts) or len(parts) == 1, "a part of one file, and something of another"
    assert seen == manifest.sizes.tolist()


@given(manifests(), LIMITS)
def test_blocks_cover_a_piece(manifest: Manifest, limits: tuple[int, int]) -> None:
    pieces = Pieces.of(manifest, *limits)
    for piece in range(len(pieces)):
        bounds = pieces.blocks(piece)
        assert (bounds[0], bounds[-1]) == (0, pieces.sizes[piece])
        if pieces.sizes[piece]:
            assert (np.diff(bounds) > 0).all()
            assert (np.diff(bounds) <= MOST_BLOCK).all()


@given(manifests(), LIMITS)
def test_samples_of_each_piece_are_as_counted_one_by_one(manifest: Manifest, limits: tuple[int, int]) -> None:
    pieces = Pieces.of(manifest, *limits)
    bounds, members = pieces.sample_bounds()
    files, offsets, _ = manifest.fields[0].locate(np.arange(manifest.samples))
    places = pieces.begins[files] + offsets
    if members is None:
        assert bounds.tolist() == brute_bounds(places, pieces.bounds)
        members = np.arange(manifest.samples)
    assert sorted(members.tolist()) == list(range(manifest.samples))
    for piece, (begin, end) in enumerate(itertools.pairwise(bounds.tolist())):
        assert (pieces.of_samples(members[begin:end]) == piece).all()


@given(manifests(), LIMITS)
def test_a_sample_needs_the_pieces_that_its_bytes_lie_in(manifest: Manifest, limits: tuple[int, int]) -> None:
    pieces = Pieces.of(manifest, *limits)
    for sample in range(min(manifest.samples, 20)):
        needed = set()
        for file, offset, nbytes in manifest.extents(sample):
            for piece in range(len(pieces)):
                for other, begin, length in pieces.extents(piece):
                    if other == file and max(begin, offset) < min(begin + length, offset + nbytes):
                        needed.add(piece)
        assert needed <= set(pieces.needed_by(sample))
        if all(nbytes for _, _, nbytes in manifest.extents(sample)):
            assert needed == set(pieces.needed_by(sample))


def test_a_big_file_is_cut_where_samples_begin() -> None:
    field = Field.regular([0], [9], [96], [100], [100])
    pieces = Pieces.of(manifest_of([1000], field), most=250, least=10)
    assert pieces.bounds.tolist() == [0, 196, 396, 596, 796, 1000]


def test_a_sample_that_is_larger_than_a_piece_is_one() -> None:
    field = Field.listed([0], [3], [0, 10, 900], [10, 890, 100])
    assert Pieces.of(manifest_of([1000], field), most=100, least=10).bounds.tolist() == [0, 10, 900, 1000]


def test_small_files_are_bundled() -> None:
    pieces = Pieces.of(manifest_of([30] * 10), most=1000, least=100)
    assert pieces.sizes.tolist() == [120, 120, 60]


def test_a_data_set_without_bytes_is_one_empty_piece() -> None:
    for sizes in ([], [0], [0, 0]):
        pieces = Pieces.of(manifest_of(sizes))
        assert (pieces.sizes.tolist(), pieces.extents(0), pieces.blocks(0).tolist()) == ([0], [], [0])
        assert pieces.sample_bounds()[0].tolist() == [0, len(sizes)]


def test_a_hundred_thousand_files_are_no_matter() -> None:
    manifest = manifest_of([50_000] * 100_000)
    pieces = Pieces.of(manifest)
    assert len(pieces) == 1191
    assert pieces.blocks(700)[-1] == pieces.sizes[700]
    bounds, members = pieces.sample_bounds()
    assert members is None
    assert bounds[-1] == 100_000


def test_many_threads_ask_for_blocks() -> None:
    pieces = Pieces.of(manifest_of([5000] * 400), most=5000, least=5000)
    wrong: list[BaseException] = []

    def ask(seed: int) -> None:
        try:
            for piece in np.random.default_rng(seed).integers(0, len(pieces), 3000).tolist():
                assert pieces.blocks(piece)[-1] == 5000
        except BaseException as error:
            wrong.append(error)

    assert len(pieces) > module.MOST_KNOWN
    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
