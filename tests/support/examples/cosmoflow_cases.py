"""What ``examples/cosmoflow`` does with TensorFlow and Keras: ``python cosmoflow_cases.py DATA FOLDER``.

Each case prints its name when it has passed; ``DATA`` are 60 volumes and others, ``FOLDER`` is empty.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from examples.common.volumes import Box, drawn, volume
from examples.cosmoflow.data import in_memory, volumes
from examples.cosmoflow.model import benchmark, sc18, statistics
from examples.cosmoflow.training import predicted, views
from farandole.errors import DataError


def reads(made: Path) -> None:
    """TensorFlow reads what is written."""
    files = sorted(map(str, (made / "train").iterdir()))
    assert len(files) == 60
    records = tf.data.TFRecordDataset(files, compression_type="GZIP")
    layout = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([4], tf.float32)}
    source = volumes(made / "train")
    assert len(source) == 60
    for number, each in enumerate(records):
        parsed = tf.io.parse_single_example(each, layout)
        counts = tf.reshape(tf.io.decode_raw(parsed["x"], tf.int16), (16, 16, 16, 2)).numpy()
        assert (counts == volume(drawn(number), Box(), number)).all()
        x, y = source[number]
        np.testing.assert_allclose(x, np.log1p(counts / counts.mean(axis=(0, 1, 2))), atol=1e-6)
        assert x.dtype == y.dtype == np.float32
        assert (y == parsed["y"].numpy()).all()


def writes(tmp_path: Path) -> None:
    """128³ cells at four redshifts, as TensorFlow writes them, are read as they are."""
    counts = np.random.default_rng(0).poisson(1.0, (128, 128, 128, 4)).astype(np.int16)
    labels = [0.1, -0.2, 0.3, -0.4]
    x = tf.train.Feature(bytes_list=tf.train.BytesList(value=[counts.tobytes()]))
    y = tf.train.Feature(float_list=tf.train.FloatList(value=labels))
    made = tf.train.Example(features=tf.train.Features(feature={"x": x, "y": y})).SerializeToString()
    path = tmp_path / "univ_ics_2019-03_a10000668_000.tfrecord"
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        writer.write(made)
    found, said = volumes(tmp_path, redshifts=4)[0]
    assert found.shape == (128, 128, 128, 4)
    np.testing.assert_allclose(found, np.log1p(counts / counts.mean(axis=(0, 1, 2), dtype=np.float64)), atol=1e-5)
    assert said == pytest.approx(labels)
    with pytest.raises(DataError, match="no cube at 3 redshifts"):
        _ = volumes(tmp_path, redshifts=3)[0]


def parameters() -> None:
    """Networks have the published numbers of these."""
    assert sc18((128, 128, 128, 1), outputs=3).count_params() == 7_041_443
    assert round(benchmark((128, 128, 128, 4)).count_params() / 1e6, 1) == 8.9
    assert benchmark((32, 32, 32, 2), width=4).output_shape == (None, 4)


def periodic(made: Path) -> None:
    """The network sees no end of the box."""
    x = in_memory(volumes(made / "test"))[0]
    model: Any = statistics(x.shape[1:])
    here = model.predict(x, verbose=0)
    moved = model.predict(np.roll(x, (4, 8, 12), (1, 2, 3)), verbose=0)  # what its poolings keep together stays so
    assert moved == pytest.approx(here, abs=1e-4)
    assert len({view.tobytes() for view in views(x)}) == 8
    assert predicted(model, x) == pytest.approx(
        np.mean([model.predict(view, verbose=0) for view in views(x)], axis=0), abs=1e-6
    )


def main(made: Path, folder: Path) -> None:
    """Run all cases."""
    (folder / "benchmark").mkdir()
    reads(made)
    print("reads")
    writes(folder / "benchmark")
    print("writes")
    parameters()
    print("parameters")
    periodic(made)
    print("periodic")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
