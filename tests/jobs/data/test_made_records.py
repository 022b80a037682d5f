"""Made files of records and tables: flipped bytes are found and named, options do what their docstrings say."""

from __future__ import annotations

import gc
import gzip
import io
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from farandole.data.formats.array_record import array_record
from farandole.data.formats.files import files
from farandole.data.formats.fits import fits
from farandole.data.formats.geotiff import geotiff
from farandole.data.formats.images import images
from farandole.data.formats.parquet import parquet
from farandole.data.formats.tar import TarSource, tar
from farandole.data.formats.tfrecord import framed, tfrecord
from farandole.data.storage.byte_store import SharedFiles
from farandole.errors import DataError, UsageError
from tests.support.data.examples import example

RECORDS = [b"", b"a", b"\0" * 30, bytes(range(200, 240))]


def records_in(folder: Path, **contents: bytes) -> Path:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


class TestTFRecord:
    whole = b"".join(map(framed, RECORDS))

    def test_plain_and_compressed_files_are_one_set(self, tmp_path: Path) -> None:
        pytest.importorskip("google_crc32c")
        folder = records_in(
            tmp_path,
            a=self.whole,
            b=gzip.compress(self.whole) + gzip.compress(framed(b"x")),
            c=b"",
            d=zlib.compress(self.whole),
        )
        source = tfrecord(folder, decode=len)
        assert list(source) == [*map(len, RECORDS), *map(len, RECORDS), 1, *map(len, RECORDS)]
        assert source[-1] == 40
        source.manifest.save(tmp_path / ".index")
        assert list(tfrecord("elsewhere", index=tmp_path / ".index")) == [*RECORDS, *RECORDS, b"x", *RECORDS]

    def test_every_flipped_byte_is_found_and_named(self, tmp_path: Path) -> None:
        pytest.importorskip("google_crc32c")
        file = tmp_path / "train-00000-of-00001"
        file.write_bytes(self.whole)
        source = tfrecord(file)
        places = [
            offset
            for offset, nbytes in zip(source.manifest.fields[0].offsets, source.manifest.fields[0].sizes, strict=True)
            for _ in range(nbytes)
        ]
        for at, place in enumerate(places):
            broken = bytearray(self.whole)
            broken[at] ^= 1 << at % 8
            file.write_bytes(broken)
            number = [*source.manifest.fields[0].offsets].index(place)
            with pytest.raises(
                DataError, match=rf"{file}: sample {number} at byte {place}: "
            ):  # what the index knew is not so
                source.on(SharedFiles())[number]
            with pytest.raises(DataError, match=str(file)):
                list(tfrecord(file))

    def test_a_file_that_is_cut_off_is_refused_when_it_is_listed(self, tmp_path: Path) -> None:
        pytest.importorskip("google_crc32c")
        file = tmp_path / "x"
        ends = [sum(len(framed(each)) for each in RECORDS[:count]) for count in range(len(RECORDS) + 1)]
        for length in range(1, len(self.whole)):
            file.write_bytes(self.whole[:length])
            if length in ends:
                assert len(tfrecord(file)) == ends.index(length)
            else:
                with pytest.raises(DataError, match=f"{file}: sample .* (cut off|checksum)"):
                    tfrecord(file)

    @pytest.mark.parametrize(
        "content",
        [
            gzip.compress(whole)[:-9],
            gzip.compress(whole)[:-3] + b"abc",
            zlib.compress(whole) + b"x",
            b"\x28\xb5\x2f\xfd" + whole,
            b'{"json": 1}' * 9,
        ],
    )
    def test_what_is_no_tfrecord_is_named(self, content: bytes, tmp_path: Path) -> None:
        pytest.importorskip("google_crc32c")
        records_in(tmp_path, x=content)
        with pytest.raises(DataError, match=f"{tmp_path}/x"):
            tfrecord(tmp_path)

    def test_examples_are_parsed_on_request(self, tmp_path: Path) -> None:
        pytest.importorskip("google_crc32c")
        records_in(tmp_path, x=framed(example({"x": [1.0, 2.0], "n": [7]})) + framed(example({"n": [8]})))
        source = tfrecord(tmp_path, features={"x": "float32", "n": ("int64", ())})
        assert [(each["x"].tolist(), int(each["n"])) for each in source] == [([1.0, 2.0], 7), ([], 8)]
        assert [*tfrecord(tmp_path, example=True)[1]] == ["n"]
        with pytest.raises(DataError, match=rf"{tmp_path}/x: sample 1 at byte \d+: feature 'x' has 0 values"):
            tfrecord(tmp_path, features={"x": ("float32", (2,))})[1]
        with pytest.raises(UsageError, match="give one of them"):
            tfrecord(tmp_path, features={}, example=True)


def packed(files: dict[str, bytes], mode: str = "w") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return file.getvalue()


class TestTar:
    files: ClassVar = {"s/1.jpg": b"x" * 700, "s/1.cls": b"3", "s/2.jpg": b"", "s/2.cls": b"4"}
    samples: ClassVar[list[dict[str, Any]]] = [
        {"__key__": "s/1", "jpg": b"x" * 700, "cls": b"3"},
        {"__key__": "s/2", "jpg": b"", "cls": b"4"},
    ]

    @pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
    def test_shards_are_read_in_order(self, mode: str, tmp_path: Path) -> None:
        for number in (0, 1):
            (tmp_path / f"{number}.tar").write_bytes(packed(self.files, mode))
        (tmp_path / "README").write_text("no shard")
        assert list(tar(tmp_path)) == self.samples * 2
        assert tar(tmp_path, decode=lambda sample: int(sample["cls"]))[-1] == 4

    def test_a_large_compressed_archive_is_refused_with_what_to_type(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(TarSource, "most_unpacked", 10_000)
        records_in(tmp_path, **{"x.tar.gz": packed(self.files, "w:gz")})
        with pytest.raises(DataError, match=r"x\.tar\.gz is compressed and holds more than .* unpack it once \(gunzip"):
            tar(tmp_path)

    def test_damage_after_the_listing_is_found(self, tmp_path: Path) -> None:
        content = bytearray(packed(self.files))
        records_in(tmp_path, **{"x.tar": bytes(content)})
        source = tar(tmp_path)
        content[2048 + 512] ^= 1
        records_in(tmp_path, **{"x.tar": bytes(content)})
        with pytest.raises(DataError, match=r"x\.tar: sample 1 .* bad checksum"):
            source.on(SharedFiles())[1]
        for damaged, sentence in (
            (b"", "is empty"),
            (b"no tar" * 200, "cannot be read as tar"),
            (packed(self.files)[:600], "cut off"),
        ):
            records_in(tmp_path, **{"x.tar": damaged})
            with pytest.raises(DataError, match=sentence):
                tar(tmp_path)


def test_files_are_bytes_with_their_folder_as_class(tmp_path: Path) -> None:
    for name in ("cat/1.bin", "cat/deep/2.bin", "ant/3.bin", "ant/.hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    source = files(tmp_path, labels="folder")
    assert list(source) == [(b"ant/3.bin", 0), (b"cat/1.bin", 1), (b"cat/deep/2.bin", 1)]
    assert source.classes == ["ant", "cat"]
    assert source.path_of(1) == str(tmp_path / "cat" / "1.bin")
    with pytest.raises(DataError, match="lies in no folder"):
        files(tmp_path / "ant", labels="folder")
    with pytest.raises(UsageError, match="give 'folder'"):
        files([tmp_path], labels="folder")


class TestParquet:
    def table(self) -> Any:
        pa = pytest.importorskip("pyarrow")
        return pa.table({
            "n": pa.array([1, None, 2**53 + 1, 4], pa.int64()),
            "x": pa.array([[1.0], [], None, [2.0, 3.0]], pa.list_(pa.float32())),
            "f": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int8(), 2)),
            "d": pa.array(["a", "b", None, "a"]).dictionary_encode(),
            "t": pa.array([0, 1, 2, 3], pa.timestamp("us", "Europe/Berlin")),
            "s": pa.array([{"a": 1}, None, {"a": 2}, {"a": 3}]),
            "b": pa.array([True, False, None, True]),
        })  # fmt: skip

    def check(self, source: Any) -> None:
        rows = list(source)
        assert [row["n"] for row in rows] == [1, None, 2**53 + 1, 4]
        assert isinstance(rows[0]["n"], np.int64)
        assert [None if row["x"] is None else row["x"].tolist() for row in rows] == [[1.0], [], None, [2.0, 3.0]]
        assert rows[3]["x"].dtype == np.float32
        assert [row["f"].tolist() for row in rows] == [[1, 2], [3, 4], [5, 6], [7, 8]]
        assert [row["d"] for row in rows] == ["a", "b", None, "a"]
        assert [row["t"] for row in rows] == [np.datetime64(number, "us") for number in range(4)]
        assert [row["s"] for row in rows] == [{"a": 1}, None, {"a": 2}, {"a": 3}]
        assert [row["b"] for row in rows] == [True, False, None, True]

    def test_rows_of_row_groups_and_batches(self, tmp_path: Path) -> None:
        table = self.table()
        from pyarrow import ipc
        from pyarrow import parquet as writer

        writer.write_table(table, tmp_path / "x.parquet", row_group_size=3, write_page_checksum=True)
        for name, opener in (("x.arrow", ipc.new_file), ("x.arrows", ipc.new_stream)):
            with opener(tmp_path / name, table.schema) as file:
                for begin in (0, 3):
                    file.write_table(table.slice(begin, 3))
        for name in ("x.parquet", "x.arrow", "x.arrows"):
            source = parquet(tmp_path / name)
            assert len(source.manifest.fields[0].files) == 2
            self.check(source)
            assert [*parquet(tmp_path / name, columns=["n"])[3].items()] == [("n", 4)]
            with pytest.raises(DataError, match=rf"{name} has no columns \['z'\]"):
                parquet(tmp_path / name, columns=["n", "z"])[0]
        assert len(parquet(tmp_path)) == 12
        gc.collect()

    def test_a_flipped_byte_of_a_page_is_found(self, tmp_path: Path) -> None:
        table = self.table()
        from pyarrow import parquet as writer

        writer.write_table(
            table,
            tmp_path / "x.parquet",
            write_page_checksum=True,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )
        content = bytearray((tmp_path / "x.parquet").read_bytes())
        content[content.index((2**53 + 1).to_bytes(8, "little"))] ^= 1
        (tmp_path / "x.parquet").write_bytes(content)
        with pytest.raises(DataError, match=r"x\.parquet: row group 0 .*CRC"):
            parquet(tmp_path)[0]
        for damaged, sentence in (
            (b"PARE" * 9, "encrypted"),
            (b"CSV;" * 9, "neither Parquet nor Arrow"),
            (b"PAR1", "cannot be read"),
        ):
            records_in(tmp_path, **{"x.parquet": damaged})
            with pytest.raises(DataError, match=sentence):
                parquet(tmp_path)
        gc.collect()


def test_array_records(tmp_path: Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    for number in (0, 1):
        writer = module.ArrayRecordWriter(str(tmp_path / f"x.array_record-{number}-of-2"), "group_size:2")
        for record in RECORDS:
            writer.write(record)
        writer.close()
    source = array_record(tmp_path)
    assert list(source) == RECORDS * 2
    del source
    file = tmp_path / "x.array_record-0-of-2"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=rf"{file} cannot be read as ArrayRecord"):
        array_record(tmp_path)
    gc.collect()


@pytest.mark.parametrize(
    ("read", "package", "extra"),
    [
        (images, "PIL", "data"),
        (geotiff, "tifffile", "data"),
        (fits, "astropy.io", "data-formats"),
        (parquet, "pyarrow", "data-formats"),
        (array_record, "array_record.python", "data-formats"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    read: Any, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=rf'needs the package {package}: pip install "farandole\[{extra}\]"'):
        read(tmp_path / "x")[0]
