"""Keras as the slides of 2018 had it: a distributed optimizer, callbacks, and checkpoints on one rank.

    farandole run --horovod -np 2 python examples/talks_2018/keras_fit.py

Lines marked "removed" say which name Keras, or a download, took away since; the part marked "added" says what was
learned. All the others are those of 2018.
"""

import math
import os

import horovod.keras as hvd
import keras
import numpy as np
import tensorflow as tf
from keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from keras.models import Sequential
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

# Initialize Horovod
hvd.init()

# Pin GPU to be used to process local rank (one GPU per process)
# removed: keras.backend.set_session(tf.Session(config=config)), with sessions, in TensorFlow 2.0 and Keras 3
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

batch_size = 32
num_classes = 10

# Adjust number of epochs based on number of workers
epochs = int(math.ceil(12.0 / hvd.size()))

# removed: keras.datasets.mnist.load_data(), a download
images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
x_train, x_test, y_train, y_test = train_test_split(images, labels, random_state=7)

# Convert class vectors to binary class matrices
y_train = keras.utils.to_categorical(y_train, num_classes)
y_test = keras.utils.to_categorical(y_test, num_classes)

model = Sequential()
model.add(keras.Input((8, 8, 1)))  # removed: Conv2D(input_shape=...), of which Keras 3 warns
model.add(Conv2D(32, kernel_size=(3, 3), activation="relu"))
model.add(Conv2D(64, (3, 3), activation="relu"))
model.add(MaxPooling2D(pool_size=(2, 2)))
model.add(Dropout(0.25))
model.add(Flatten())
model.add(Dense(128, activation="relu"))
model.add(Dropout(0.5))
model.add(Dense(num_classes, activation="softmax"))

# Adjust learning rate based on number of workers
opt = keras.optimizers.Adadelta(1.0 * hvd.size())

# Add Horovod Distributed Optimizer
opt = hvd.DistributedOptimizer(opt)

model.compile(loss=keras.losses.categorical_crossentropy, optimizer=opt, metrics=["accuracy"])

callbacks = [
    # Broadcast initial variable states from rank 0 to all other processes
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
]

# Save checkpoints only on worker 0 to prevent other workers from corrupting them
if hvd.rank() == 0:
    os.makedirs("out/talks_2018", exist_ok=True)
    callbacks.append(keras.callbacks.ModelCheckpoint("out/talks_2018/checkpoint-{epoch}.h5"))

model.fit(
    x_train,
    y_train,
    batch_size=batch_size,
    callbacks=callbacks,
    epochs=epochs,
    verbose=1 if hvd.rank() == 0 else 0,
    validation_data=(x_test, y_test),
)
score = model.evaluate(x_test, y_test, verbose=0)

# added: how well it learned, and whether all ranks learned the same
weights = model.get_weights()
models = hvd.allgather_object(weights)
same = all(np.array_equal(one, other) for model in models for one, other in zip(model, weights, strict=True))
if hvd.rank() == 0:
    print(f"test accuracy {score[1]:.3f} on {hvd.size()} worker(s), models are equal: {same}")
