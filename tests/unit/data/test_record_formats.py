"""Framing, wire format and headers in memory: what is written is read, and what is damaged is refused by name."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.formats.example import feature_specs, parse_example
from farandole.data.formats.grib import messages
from farandole.data.formats.records import Extent
from farandole.data.formats.tar import TarSource, members
from farandole.data.formats.tfrecord import TFRecordSource, framed, record_of
from farandole.errors import DataError, UsageError
from tests.support.data.examples import example, field


def refusal(read: Callable[[], object], otherwise: str) -> str:
    """The sentence by which something is refused."""
    try:
        read()
    except DataError as error:
        return str(error)
    return otherwise


NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)
FLOATS = st.lists(st.floats(width=32), max_size=20)
STRINGS = st.lists(st.binary(max_size=20), min_size=1, max_size=5)


@given(
    st.dictionaries(st.text(max_size=8), st.one_of(NUMBERS, FLOATS, STRINGS, st.none()), max_size=5),
    st.booleans(),
    st.integers(1, 3),
)
def test_an_example_is_read_as_it_was_written(features: dict[str, Any], is_packed: bool, parts: int) -> None:
    found = parse_example(example(features, is_packed, parts))
    assert found.keys() == features.keys()
    for name, values in features.items():
        if values is None or (values and isinstance(values[0], bytes)):
            assert found[name] == values
        else:
            dtype = np.float32 if values and isinstance(values[0], float) else np.int64
            assert found[name].dtype == dtype
            assert np.array_equal(found[name], np.array(values, dtype), equal_nan=dtype == np.float32)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_example_or_are_refused(data: bytes) -> None:
    assert "no tf.train.Example" in refusal(lambda: parse_example(data), "no tf.train.Example")


@given(st.dictionaries(st.text(max_size=8), st.one_of(NUMBERS, FLOATS, STRINGS), min_size=1), st.data())
def test_an_example_that_is_cut_off_is_refused(features: dict[str, Any], data: st.DataObject) -> None:
    record = example(features)
    with pytest.raises(DataError, match="cut off"):
        parse_example(record[: data.draw(st.integers(1, len(record) - 1))])


def records(data: bytes) -> list[bytes]:
    """Records of a file that holds these bytes."""
    found = TFRecordSource.extents(lambda at, count: data[at : at + count], len(data), "x", {})
    return [record_of(data[at : at + nbytes], f"x: sample at {at}") for at, nbytes in found]


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.data())
def test_records_are_read_as_they_were_framed_and_no_flipped_bit_is_missed(
    written: list[bytes], data: st.DataObject
) -> None:
    pytest.importorskip("google_crc32c")
    whole = bytearray(b"".join(map(framed, written)))
    assert records(bytes(whole)) == written
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DataError, match=r"^x: sample"):
        records(bytes(whole))


def test_other_messages_are_no_examples() -> None:
    context = example({"id": [1]})
    for record in (
        context + field(2, b""),
        field(1, context),
        field(1, context) + field(2, context),
        b"\xff" * 12,
        b"raw",
    ):
        with pytest.raises(DataError, match="no tf"):
            parse_example(record)
    assert parse_example(b"") == {}


def test_features_are_given_as_they_are_asked_for() -> None:
    raw = np.arange(6, dtype=np.int16)
    record = example(
        {"x": [1.0, 2.0], "n": [300], "raw": [raw.tobytes()], "png": [b"\0a\0"], "none": None, "two": [b"a", b"b"]}
    )
    specs = feature_specs(
        {
            "x": ("float64", (2, 1)),
            "n": ("int32", ()),
            "raw": ("int16", (2, 3)),
            "png": ("bytes", ()),
            "none": "float32",
            "two": "bytes",
            "absent": "bytes",
        }
    )
    found = parse_example(record, specs)
    assert np.array_equal(found["raw"], raw.reshape(2, 3))
    assert (found["x"].shape, found["x"].dtype.str) == ((2, 1), "<f8")
    assert found["n"] == 300
    assert found["png"] == b"\0a\0"
    assert (found["two"], found["absent"]) == ([b"a", b"b"], [])
    assert found["none"].size == 0


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"x": ("float32", (3,))}, "has 2 values of float32, and the shape"),
        ({"x": "int64"}, "holds float32, which int64 would cut"),
        ({"n": "int8"}, "holds int64, which int8 would cut"),
        ({"n": "bytes"}, "holds int64, not bytes"),
        ({"png": "int32"}, "has 3 bytes, which are no whole number"),
        ({"absent": ("float32", (1,))}, "has 0 values"),
        ({"png": ("bytes", (2,))}, "has 1 values"),
    ],
)
def test_what_is_not_as_asked_for_is_refused(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        parse_example(example({"x": [1.0, 2.0], "n": [300], "png": [b"\0a\0"]}), feature_specs(spec))


def test_a_dtype_that_is_none_is_a_wrong_call() -> None:
    for wrong in ("float31", "object", "str"):
        with pytest.raises(UsageError, match="give 'bytes' or a dtype"):
            feature_specs({"x": wrong})


def archive(files: list[tuple[str, bytes]], kind: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for name, body in files:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return file.getvalue()


def extents(data: bytes, group: str = "key") -> list[Extent]:
    return TarSource.extents(lambda at, count: data[at : at + count], len(data), "x.tar", {"group": group})


NAMES = st.text(st.characters(blacklist_characters="\0/.", blacklist_categories=["Cs"]), min_size=1, max_size=130)


@given(
    st.lists(st.tuples(NAMES, NAMES, st.binary(max_size=1200)), unique_by=lambda each: each[:2], max_size=6),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_members_are_those_of_tarfile(files: list[tuple[str, str, bytes]], kind: int) -> None:
    named = [(f"{folder}/{name}.x", body) for folder, name, body in files]
    data = archive(named, kind)
    found = list(members(lambda at, count: data[at : at + count], len(data), "x.tar"))
    assert [(member.name, data[member.begin : member.begin + member.nbytes]) for member in found] == named
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [(member.name, member.begin) for member in found] == [(each.name, each.offset_data) for each in tar]


@given(st.data())
def test_a_damaged_archive_is_refused_or_its_members_are_right(data: st.DataObject) -> None:
    files = [("a/1.jpg", b"x" * 700), ("a/1.cls", b"3"), ("a/" + "n" * 120 + ".jpg", b"y" * 512)]
    whole = bytearray(archive(files, data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(whole[: data.draw(st.integers(1, len(whole)))])
    assert refusal(lambda: extents(cut), "x.tar").startswith("x.tar")


def test_every_flipped_byte_of_a_header_is_found() -> None:
    data = archive([("a/1.jpg", b"x" * 700), ("a/1.cls", b"3")], tarfile.GNU_FORMAT)
    for at in {*range(512), *range(1536, 2048)} - {155, 1691}:  # which stand behind the NUL of a checksum
        broken = bytearray(data)
        broken[at] ^= 0x15
        with pytest.raises(DataError, match="x.tar: the member at byte 1536" if at >= 512 else "x.tar cannot be read"):
            extents(bytes(broken))


def test_samples_are_members_of_one_key_or_folder() -> None:
    data = archive(
        [("a/1.jpg", b"x"), ("a/1.seg.png", b"yy"), ("a/._1.jpg", b"junk"), ("b/1.jpg", b"z")], tarfile.GNU_FORMAT
    )
    assert len(extents(data)) == len(extents(data, "folder")) == 2
    for files, sentence in (
        ([("1.a", b""), ("2.a", b""), ("1.b", b"")], "'1' has 'b' at byte 1024, after other samples"),
        ([("1.a", b""), ("1.a", b"")], "'1' has 'a' at byte 512, twice"),
    ):
        with pytest.raises(DataError, match=sentence):
            extents(archive(files, tarfile.USTAR_FORMAT))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [(tarfile.LNKTYPE, "hard link"), (tarfile.SYMTYPE, "symbolic link"), (b"S", "sparse"), (b"M", "type b'M'")],
)
def test_links_and_sparse_files_are_refused(kind: bytes, sentence: str) -> None:
    info = tarfile.TarInfo("a.jpg")
    info.type, info.linkname = kind, "b.jpg"
    data = info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    with pytest.raises(DataError, match=sentence):
        extents(data)


def test_sparse_files_of_pax_global_names_and_joined_archives_are_refused() -> None:
    sparse = tarfile.TarInfo("a.jpg")
    sparse.pax_headers = {"GNU.sparse.major": "1"}
    common = tarfile.TarInfo.create_pax_global_header({"path": "b"})
    one = archive([("1.a", b"")], tarfile.GNU_FORMAT)
    for data, sentence in (
        (sparse.tobuf(tarfile.PAX_FORMAT) + bytes(1024), "sparse"),
        (common + one, "for all members"),
        (one + one, "end mark"),
    ):
        with pytest.raises(DataError, match=sentence):
            extents(data)
    assert len(extents(tarfile.TarInfo.create_pax_global_header({"comment": "0123"}) + one)) == 1


def grib2(body: int) -> bytes:
    return b"GRIB\0\0\0\x02" + struct.pack(">Q", 20 + body) + bytes(body) + b"7777"


def scanned(data: bytes) -> list[Extent]:
    return list(messages(lambda at, count: data[at : at + count], len(data), "x.grib"))


def test_grib_messages_are_found_by_their_lengths() -> None:
    edition1 = b"GRIB" + (60).to_bytes(3, "big") + b"\x01" + bytes(48) + b"7777"
    data = b"\x01\r\r\nHEAD" + grib2(30) + b"\0" * 7 + edition1 + grib2(0) + b"\r\r\n\x03"
    assert scanned(data) == [(8, 50), (65, 60), (125, 20)]


def test_large_messages_of_edition_1_are_counted_in_120_bytes() -> None:
    total, claimed = 120 * 70000 - 50, 54
    head = (
        b"GRIB"
        + (0x800000 | 70000).to_bytes(3, "big")
        + b"\x01"
        + (28).to_bytes(3, "big")
        + bytes(4)
        + b"\x80"
        + bytes(20)
    )
    data = head + (32).to_bytes(3, "big") + bytes(29) + claimed.to_bytes(3, "big")
    data = data.ljust(total - 4, b"\0") + b"7777"
    assert scanned(data) == [(0, total)]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (grib2(30)[:-1], "is cut off"),
        (grib2(30)[:-1] + b"8", "7777"),
        (b"GRIB\0\0\0\x03" + bytes(20), "edition"),
        (b"CDF\x01", "no GRIB message begins at byte 0"),
        (grib2(4) + b"junk", "begins at byte 24"),
        (b"GRIB", "cut off"),
    ],
)
def test_damaged_grib_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        scanned(data)
