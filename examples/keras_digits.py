"""Train a small convolutional network on handwritten digits with Keras 3, on any of its backends.

    farandole run -np 2 python examples/keras_digits.py                         # also: make demo FRAMEWORK=keras
    KERAS_BACKEND=jax farandole run -np 2 python examples/keras_digits.py       # or tensorflow, or torch

The data are the 1797 real digits of 8 x 8 pixels that scikit-learn ships. The lines marked (1) to (5) are what makes a
training script distributed; everything else is ordinary Keras.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import farandole.keras as hvd

EPOCHS, GLOBAL_BATCH, LEARNING_RATE, SEED = 12, 64, 0.05, 7

hvd.init()  # (1) join the other workers
keras.utils.set_random_seed(SEED)

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 16
train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=SEED, stratify=labels)
even = len(train_x) // hvd.size() * hvd.size()
mine = slice(hvd.rank(), even, hvd.size())  # (2) every worker has its own samples, and as many as the others

model = keras.Sequential([
    keras.layers.Input((8, 8, 1)),
    keras.layers.Conv2D(32, 3, activation="relu"),
    keras.layers.Conv2D(64, 3, activation="relu"),
    keras.layers.MaxPooling2D(),
    keras.layers.Flatten(),
    keras.layers.Dense(10),
])  # fmt: skip
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(LEARNING_RATE, momentum=0.9))  # (3) average gradients
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss=loss, metrics=["accuracy"])
model.fit(
    train_x[mine],
    train_y[mine],
    batch_size=GLOBAL_BATCH // hvd.size(),
    epochs=EPOCHS,
    verbose=hvd.verbose(2),  # (4) one worker speaks
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # (5) start from the same weights, and report one loss
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(LEARNING_RATE, warmup_epochs=2),
    ],
)

accuracy = float(np.mean(np.argmax(model.predict(test_x, verbose=0), axis=1) == test_y))
if hvd.rank() == 0:
    print(f"test accuracy {accuracy:.3f} on {hvd.size()} worker(s), Keras on {keras.backend.backend()}")
hvd.shutdown()
