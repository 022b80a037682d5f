"""Batches of ``farandole.data`` in ``fit`` and in ``tf.data``, in one process."""

from __future__ import annotations

from tests.support.frameworks import skip_without
from tests.support.launching import Launch

skip_without("keras")
skip_without("tensorflow")

PROGRAM = """
import os, threading
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
from farandole.data.loading.batches import Batches
from farandole.data.loading.report import report
from farandole.keras.batches_dataset import BatchesDataset
from farandole.tensorflow.batches_dataset import dataset

samples = [({"x": np.full((2, 2), i, np.uint8), "name": f"s{i}"}, i) for i in range(10)]
found = [(x["x"].shape, x["name"].numpy().tolist(), y.numpy().tolist())
         for x, y in dataset(Batches(samples, 4, shuffle=False))]
assert found[-1] == ((2, 2, 2), [b"s8", b"s9"], [8, 9]), found
assert sum(len(y) for _, _, y in found) == 10

class Damaged(list):
    def __getitem__(self, index):
        assert index not in (0, 5)
        return index

skipping = Batches(Damaged(range(8)), 4, shuffle=False, on_corrupt="skip")
assert [batch.numpy().tolist() for batch in dataset(skipping)] == [[1, 2, 3], [4, 6, 7]]
try:
    BatchesDataset(skipping)
except ValueError as error:
    assert "on_corrupt='skip'" in str(error)
else:
    raise AssertionError("fit() takes batches that are voted on before their step")

batches = Batches([(np.full(3, i, np.float32), np.float32(i)) for i in range(20)], 6, seed=1)
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(BatchesDataset(batches), epochs=2, shuffle=False, verbose=0)
assert batches.sampler.epoch == 2
assert report().steps >= 6
try:
    model.fit(BatchesDataset(batches), verbose=0)
except ValueError as error:
    assert "call fit(..., shuffle=False)" in str(error)
else:
    raise AssertionError("fit() has shuffled batches that are loaded ahead")
assert not [thread for thread in threading.enumerate() if thread.name.startswith("farandole-load")]
print("done")
"""


def test_batches_in_fit_and_in_tf_data(launch: Launch) -> None:
    assert launch(1, PROGRAM).ok().lines()[-1] == "done"
