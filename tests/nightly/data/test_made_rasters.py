"""Made images, rasters and fields: layouts give the same pixels, options do what their docstrings say."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.data.formats.fits import fits
from farandole.data.formats.geotiff import geotiff
from farandole.data.formats.grib import grib
from farandole.data.formats.images import images
from farandole.errors import DataError, UsageError


class TestImages:
    def saved(self, folder: Path, name: str, pixels: Any, **options: Any) -> Path:
        image = pytest.importorskip("PIL.Image")
        made = image.fromarray(pixels)
        if mode := options.pop("mode", None):
            made = made.convert(mode)
        made.save(folder / name, **options)
        return folder / name

    def test_pixels_are_as_stored(self, tmp_path: Path) -> None:
        grey = (np.arange(48, dtype=np.uint16) * 1000).reshape(6, 8)
        assert np.array_equal(images(self.saved(tmp_path, "16.png", grey))[0], grey)
        colours = np.dstack([grey.astype(np.uint8)] * 3)
        palette = images(self.saved(tmp_path, "p.png", colours, mode="P"))[0]
        assert (palette.shape, palette.dtype) == ((6, 8), np.uint8)
        assert images(tmp_path / "p.png", mode="RGB")[0].shape == (6, 8, 3)
        assert images(self.saved(tmp_path, "1.bmp", grey > 9000))[0].dtype == np.bool_

    def test_exif_turns_on_request(self, tmp_path: Path) -> None:
        image = pytest.importorskip("PIL.Image")
        exif = image.Exif()
        exif[274] = 6
        file = self.saved(tmp_path, "x.png", np.arange(48, dtype=np.uint8).reshape(6, 8), exif=exif)
        assert images(file)[0].shape == (6, 8)
        assert images(file, exif=True)[0].shape == (8, 6)

    def test_16_bits_of_colours_are_not_cut_in_silence(self, tmp_path: Path) -> None:
        pytest.importorskip("PIL")
        codecs = pytest.importorskip("imagecodecs")
        pixels = (np.arange(192, dtype=np.uint16) * 300).reshape(8, 8, 3)
        header = b"P6\n8 8\n65535\n" + pixels.byteswap().tobytes()
        for name, content in {
            "x.png": codecs.png_encode(pixels),
            "x.ppm": header,
            "x.jp2": codecs.jpeg2k_encode(pixels, level=0),
        }.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(DataError, match=f"{name} has 16 bits in each of several channels"):
                images(tmp_path / name)[0]
            assert images(tmp_path / name, mode="RGB")[0].dtype == np.uint8

    def test_damaged_and_executable_files_are_refused(self, tmp_path: Path) -> None:
        file = self.saved(tmp_path, "x.png", np.zeros((60, 80), np.uint8))
        file.write_bytes(file.read_bytes()[:-20])
        (tmp_path / "x.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
        for name in ("x.png", "x.jpg"):
            with pytest.raises(DataError, match=f"{name} cannot be read as an image"):
                images(tmp_path / name)[0]


class TestGeoTiff:
    pixels = np.arange(3 * 40 * 50, dtype=np.uint16).reshape(3, 40, 50)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"planarconfig": "separate"},
            {"byteorder": ">"},
            {"compression": "zlib", "predictor": True},
            {"tile": (16, 16), "compression": "lzw"},
            {"bigtiff": True},
        ],
    )
    def test_layouts_give_the_same_pixels(self, options: dict[str, Any], tmp_path: Path) -> None:
        writer = pytest.importorskip("tifffile")
        pytest.importorskip("imagecodecs")
        stored = self.pixels if "planarconfig" in options else np.moveaxis(self.pixels, 0, -1)
        writer.imwrite(tmp_path / "x.tif", stored, photometric="rgb", **options)
        assert np.array_equal(geotiff(tmp_path)[0], self.pixels)
        assert np.array_equal(geotiff(tmp_path, order="as stored")[0], stored)

    def test_overviews_are_no_pages(self, tmp_path: Path) -> None:
        writer = pytest.importorskip("tifffile")
        with writer.TiffWriter(tmp_path / "x.tif") as file:
            file.write(self.pixels[0])
            file.write(self.pixels[0, ::2, ::2], subfiletype=1)
            file.write(self.pixels[1])
        assert np.array_equal(geotiff(tmp_path)[0], self.pixels[:1])
        assert np.array_equal(geotiff(tmp_path, pages="all", order="as stored")[0], self.pixels[:2])

    def test_nodata_and_scale_on_request(self, tmp_path: Path) -> None:
        writer = pytest.importorskip("tifffile")
        factors = '<Item sample="1" role="scale">0.5</Item><Item sample="1" role="offset">3</Item>'
        told = f"<GDALMetadata>{factors}</GDALMetadata>"
        for name, nodata in (("x", "7"), ("y", "-9999"), ("z", "7.0"), ("zz", "7.5")):
            tags = [(42113, 2, 0, nodata, True), (42112, 2, 0, told, True)]
            writer.imwrite(
                tmp_path / f"{name}.tif", self.pixels, planarconfig="separate", photometric="rgb", extratags=tags
            )
        assert geotiff(tmp_path)[0].dtype == np.uint16
        filled = geotiff(tmp_path, fill="nan")[0]
        assert (filled.dtype, np.flatnonzero(np.isnan(filled)).tolist()) == (np.float32, [7])
        assert geotiff(tmp_path, fill="mask")[0].mask.sum() == 1
        assert [np.isnan(each).sum() for each in geotiff(tmp_path, fill="nan")] == [1, 0, 1, 0]  # no uint16 is -9999
        scaled = geotiff(tmp_path, scaled=True)[0]
        assert np.array_equal(
            scaled, self.pixels * np.array([1, 0.5, 1])[:, None, None] + np.array([0, 3, 0])[:, None, None]
        )

    def test_a_folder_of_bands_is_a_sample(self, tmp_path: Path) -> None:
        writer = pytest.importorskip("tifffile")
        for number, patch in enumerate(("S2A_1", "S2A_2")):
            (tmp_path / patch).mkdir()
            for band, step in (("B01", 4), ("B02", 1), ("B8A", 2)):
                writer.imwrite(tmp_path / patch / f"{patch}_{band}.tif", self.pixels[number, ::step, ::step])
            (tmp_path / patch / f"{patch}_labels_metadata.json").write_text(json.dumps({"labels": [patch]}))
        sample = geotiff(tmp_path, group="folder")[1]
        assert {band: pixels.shape for band, pixels in sample.items()} == {
            "B01": (1, 10, 13),
            "B02": (1, 40, 50),
            "B8A": (1, 20, 25),
        }
        source = geotiff(tmp_path, group="folder", bands=("B8A", "B02", "labels_metadata.json"))
        assert [*source[0]] == ["B8A", "B02", "labels_metadata.json"]
        assert np.array_equal(source[1]["B8A"][0], self.pixels[1, ::2, ::2])
        assert json.loads(source[1]["labels_metadata.json"]) == {"labels": ["S2A_2"]}
        (tmp_path / "S2A_2" / "S2A_2_B02.tif").unlink()
        with pytest.raises(DataError, match=r"S2A_2 has 0 files of band 'B02'"):
            geotiff(tmp_path, group="folder")

    def test_damage_and_wrong_calls(self, tmp_path: Path) -> None:
        writer = pytest.importorskip("tifffile")
        writer.imwrite(tmp_path / "x.tif", self.pixels[0])
        content = (tmp_path / "x.tif").read_bytes()
        with writer.TiffFile(tmp_path / "x.tif") as file:
            width = file.pages[0].tags[256].offset
        retyped = content[: width + 2] + b"\xc8" + content[width + 3 :]
        for damaged, sentence in (
            (retyped, r"damaged tags of pixels, \[256\]|cannot be read"),
            (content[:-9], "cut off"),
            (b"II", "cannot be read as TIFF"),
        ):
            (tmp_path / "x.tif").write_bytes(damaged)
            with pytest.raises(DataError, match=sentence):
                geotiff(tmp_path)[0]
        for wrong in ({"order": "CHW"}, {"fill": "zero"}, {"bands": ("B02",)}, {"group": "file"}):
            with pytest.raises(UsageError, match="give"):
                geotiff(tmp_path, **wrong)


def test_fits_units(tmp_path: Path) -> None:
    astropy = pytest.importorskip("astropy.io.fits")
    blank = astropy.ImageHDU(np.arange(12, dtype=np.int16).reshape(3, 4), name="B")
    blank.header["BLANK"], blank.header["BSCALE"] = 5, 0.5
    unsigned = astropy.ImageHDU(np.array([0, 65535], np.uint16), name="U")
    table = astropy.BinTableHDU.from_columns(
        [astropy.Column("x", "E", array=np.ones(3)), astropy.Column("s", "4A", array=["a", "bc", "d"])]
    )
    astropy.HDUList([astropy.PrimaryHDU(), blank, unsigned, table]).writeto(tmp_path / "x.fits", checksum=True)
    found = fits(tmp_path)[0]
    assert (found.dtype, np.flatnonzero(np.isnan(found)).tolist(), found[2, 3]) == (np.float32, [5], 5.5)
    assert fits(tmp_path, hdu="B", raw=True, checksum=True)[0].dtype == np.int16
    assert fits(tmp_path, hdu="U")[0].tolist() == [0, 65535]
    assert (fits(tmp_path, hdu=3)[0]["x"].dtype.isnative, fits(tmp_path, hdu=3)[0]["s"].tolist()) == (
        True,
        ["a", "bc", "d"],
    )
    with pytest.raises(DataError, match=r"has no unit 'X' with data: it has 0 PRIMARY, 1 B, 2 U, 3"):
        fits(tmp_path, hdu="X")[0]
    content = (tmp_path / "x.fits").read_bytes()
    (tmp_path / "x.fits").write_bytes(gzip.compress(content))
    assert np.array_equal(fits(tmp_path)[0], found, equal_nan=True)
    (tmp_path / "x.fits").write_bytes(content[: 2880 * 2 + 9])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # astropy's, which is all that it says
        with pytest.raises(DataError, match=r"x\.fits"):
            fits(tmp_path, hdu="B")[0]


def test_grib_selection_and_grids(tmp_path: Path) -> None:
    eccodes = pytest.importorskip("eccodes")
    messages = []
    for sample, level in (("regular_ll_pl_grib2", 850), ("regular_ll_pl_grib1", 500), ("regular_ll_pl_grib2", 500)):
        handle = eccodes.codes_grib_new_from_samples(sample)
        eccodes.codes_set(handle, "level", level)
        eccodes.codes_set_values(handle, np.arange(eccodes.codes_get_size(handle, "values"), dtype=np.float64))
        messages.append(eccodes.codes_get_message(handle))
        eccodes.codes_release(handle)
    (tmp_path / "x.grib").write_bytes(b"".join(messages))
    source = grib(tmp_path, select={"level": 500}, keys=("edition", "level"), grid=True)
    assert [told for _, told in source] == [{"edition": 1, "level": 500}, {"edition": 2, "level": 500}]
    assert [values.shape for values, _ in source] == [(31, 16)] * 2
    assert source[0][0][1, 0] == pytest.approx(16, abs=0.1)
    with pytest.raises(DataError, match="hold no sample"):
        grib(tmp_path, select={"level": 1})
    whole = messages[0]
    two_fields = whole[:-4] + whole[-4 - 4 :]
    twice = whole[16:-4]
    joined = whole[:8] + (len(whole) + len(twice)).to_bytes(8, "big") + whole[16:-4] + twice + b"7777"
    for content, sentence in (
        (joined, "holds 2 fields"),
        (whole[:-10] + b"7777", "cut off"),
        (two_fields, "7777|damaged"),
    ):
        (tmp_path / "x.grib").write_bytes(content)
        with pytest.raises(DataError, match=sentence):
            grib(tmp_path)[0]
