"""Manifests: what is written is what is read, and a damaged one is never believed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.storage.fields import Field
from farandole.data.storage.listing import FileEntry, list_files, root_of
from farandole.data.storage.manifest import Manifest
from farandole.errors import DataError
from tests.support.data.staging_sets import manifest_of, manifests


@given(manifests())
def test_it_comes_back_as_it_was(manifest: Manifest) -> None:
    again = Manifest.decode(manifest.encode())
    assert (again.format, again.root, again.digest) == (manifest.format, manifest.root, manifest.digest)
    assert list(again.paths) == list(manifest.paths)
    assert again.samples == manifest.samples
    assert [again.extents(each) for each in range(again.samples)] == [
        manifest.extents(each) for each in range(manifest.samples)
    ]


@given(manifests(), st.data())
def test_a_damaged_one_is_refused(manifest: Manifest, data: st.DataObject) -> None:
    text = bytearray(manifest.encode())
    text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DataError, match=r"is damaged|is no index"):
        Manifest.decode(bytes(text))
    with pytest.raises(DataError, match=r"is damaged|is no index"):
        Manifest.decode(bytes(text[: data.draw(st.integers(0, len(text) - 1))]))


def test_any_difference_makes_another_digest() -> None:
    found = {
        manifest_of([5, 6]).digest,
        manifest_of([5, 7]).digest,
        manifest_of([5, 6], Field.regular([0, 1], [1, 1], [0, 1], [0, 0], [5, 5])).digest,
        Manifest.of("raw", "/set", [FileEntry("/set/0000.bin", 5, 1)], [Field.whole_files([5])]).digest,
        Manifest.of("raw", "/set", [FileEntry("/set/0000.bin", 5, 2)], [Field.whole_files([5])]).digest,
        Manifest.of("raw", "/other", [FileEntry("/set/0000.bin", 5, 2)], [Field.whole_files([5])]).digest,
        Manifest.of("raw", "/set", [FileEntry("/set/0000.bin", 5, 2)], [Field.whole_files([5])], {"a": 1}).digest,
    }
    assert len(found) == 7
    with_sums = manifest_of([5, 6]).with_sums(np.ones(1, np.uint64))
    assert with_sums.digest == manifest_of([5, 6]).digest
    assert Manifest.decode(with_sums.encode()).sums.tolist() == [1]


def test_it_is_saved_whole_or_not_at_all(tmp_path: Path) -> None:
    manifest = manifest_of([5, 6])
    manifest.save(tmp_path / "index")
    assert Manifest.load(tmp_path / "index").digest == manifest.digest
    assert os.listdir(tmp_path) == ["index"]
    with pytest.raises(DataError, match="cannot be written"):
        manifest.save(tmp_path / "absent" / "index")
    for content in (b"", b"FRNDIDX1", b"text"):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read|is no index|is damaged"):
            Manifest.load(tmp_path / "other")


def test_names_need_not_be_unicode(tmp_path: Path) -> None:
    folder = os.path.join(os.fsencode(tmp_path), b"d\xff")
    os.mkdir(folder)
    with open(os.path.join(folder, b"n\xfe.bin"), "wb") as file:
        file.write(b"123")
    entries = list_files(os.fsdecode(folder))
    manifest = Manifest.of("raw", root_of(os.fsdecode(folder)), entries, [Field.whole_files([3])])
    again = Manifest.decode(manifest.encode())
    assert again.digest == manifest.digest
    assert Path(again.paths[0]).read_bytes() == b"123"


def test_parts_of_samples_are_equally_many() -> None:
    with pytest.raises(DataError, match=r"differ in number: \[2, 1\]"):
        manifest_of([5, 6], Field.whole_files([5, 6]), Field.whole_files([5]))


def test_links_in_circles_are_listed_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x").write_bytes(b"1")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "y").write_bytes(b"2")
    (tmp_path / "a" / "b" / "up").symlink_to("..")
    (tmp_path / "a" / "over").symlink_to("../c")
    (tmp_path / "c" / "back").symlink_to("../a")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "self").symlink_to("self")
    found = [entry.path for entry in list_files(tmp_path)]
    assert {str(tmp_path / each) for each in ("a/x", "c/y", "a/over/y")} <= set(found)
    assert len(found) < 10
