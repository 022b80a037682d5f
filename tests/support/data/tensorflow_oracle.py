"""TensorFlow's own writer and parser as the oracle of ``tfrecord`` and of the reader of ``tf.train.Example``.

python -m tests.support.data.tensorflow_oracle FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farandole.data.formats.example import parse_example
from farandole.data.formats.tfrecord import tfrecord
from farandole.errors import DataError
from tests.support.data.examples import example

LISTS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30),
    st.lists(st.floats(width=32, allow_nan=False), max_size=30),
    st.lists(st.binary(max_size=30), max_size=4),
    st.none(),
)


def written(features: dict[str, Any]) -> Any:
    """TensorFlow's Example of these lists."""
    kinds: dict[type, Any] = {
        int: lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values)),
        float: lambda values: tf.train.Feature(float_list=tf.train.FloatList(value=values)),
        bytes: lambda values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)),
    }
    made = {name: kinds[type(values[0])](values) if values else tf.train.Feature() for name, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=made))


def as_tensorflow_has_it(message: Any) -> dict[str, Any]:
    """Lists by name of a parsed Example; ``None`` where there is none."""
    found: dict[str, Any] = {}
    for name, feature in message.features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = None if kind is None else list(getattr(feature, kind).value)
    return found


def as_we_have_it(record: bytes) -> dict[str, Any]:
    found = parse_example(record)
    return {name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in found.items()}


# The profile of conftest.py is not loaded here, and the first text takes seconds beside other tests.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@patient
@given(st.dictionaries(st.text(max_size=10), LISTS, max_size=6))
def examples_of_tensorflow_are_read_as_it_reads_them(features: dict[str, Any]) -> None:
    message = written(features)
    assert as_we_have_it(message.SerializeToString()) == as_tensorflow_has_it(message)


@patient
@given(st.dictionaries(st.text(max_size=10), LISTS, max_size=4), st.booleans(), st.integers(1, 3))
def ours_are_read_by_tensorflow(features: dict[str, Any], is_packed: bool, parts: int) -> None:
    record = example(features, is_packed, parts)
    assert as_we_have_it(record) == as_tensorflow_has_it(tf.train.Example.FromString(record))


@patient
@given(st.dictionaries(st.text(max_size=10), LISTS, max_size=4), st.data())
def what_tensorflow_refuses_is_refused(features: dict[str, Any], data: st.DataObject) -> None:
    record = bytearray(example(features) or b"\x0a\x00")
    record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    try:
        ours: Any = as_we_have_it(bytes(record))
    except DataError:
        return  # also of fields that TensorFlow would skip: they show that it is another message
    theirs = as_tensorflow_has_it(tf.train.Example.FromString(bytes(record)))
    assert repr(sorted(ours.items())) == repr(sorted(theirs.items()))  # NaN is NaN


def files_of_its_writer_are_read_and_it_reads_what_we_frame(folder: Path, compression: str) -> None:
    records = [written({"x": [float(n)] * n, "n": [n]}).SerializeToString() for n in range(1, 200)]
    file = folder / "train.tfrecord-00000-of-00001"
    with tf.io.TFRecordWriter(str(file), tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for record in records:
            writer.write(record)
    assert list(tfrecord(folder)) == records
    assert [len(sample["x"]) for sample in tfrecord(folder, features={"x": "float32"})] == [*range(1, 200)]
    assert [*tf.data.TFRecordDataset(str(file), compression_type=compression).as_numpy_iterator()] == records


def sequence_examples_arrive_as_bytes(folder: Path) -> None:
    steps = tf.train.FeatureList(feature=[tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))])
    message = tf.train.SequenceExample(feature_lists=tf.train.FeatureLists(feature_list={"a": steps}))
    with tf.io.TFRecordWriter(str(folder / "x")) as writer:
        writer.write(message.SerializeToString())
    assert tf.train.SequenceExample.FromString(tfrecord(folder)[0]) == message
    with pytest.raises(DataError, match="SequenceExample"):
        tfrecord(folder, example=True)[0]


if __name__ == "__main__":
    examples_of_tensorflow_are_read_as_it_reads_them()
    ours_are_read_by_tensorflow()
    what_tensorflow_refuses_is_refused()
    for number, each in enumerate(("", "GZIP", "ZLIB")):
        (own := Path(sys.argv[1]) / str(number)).mkdir()
        files_of_its_writer_are_read_and_it_reads_what_we_frame(own, each)
    (own := Path(sys.argv[1]) / "sequence").mkdir()
    sequence_examples_arrive_as_bytes(own)
