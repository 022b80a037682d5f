"""Train a small convolutional network on handwritten digits with TensorFlow, in a training loop of your own.

    farandole run -np 2 python examples/tensorflow_digits.py                # two workers on this machine
    farandole run --horovod -np 2 python examples/tensorflow_digits.py      # the same, by Horovod's name

The data are the 1797 real digits of 8 x 8 pixels that scikit-learn ships. The lines marked (1) to (5) are what makes a
training script distributed; everything else is ordinary TensorFlow 2 and Keras 3.
"""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

try:
    import horovod.tensorflow as hvd  # scripts written for Horovod need no change
except ModuleNotFoundError:
    import farandole.tensorflow as hvd

STEPS, GLOBAL_BATCH, LEARNING_RATE, SEED = 200, 64, 0.05, 7

hvd.init()  # (1) join the other workers
tf.keras.utils.set_random_seed(SEED)

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 16
train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=SEED, stratify=labels)

dataset = tf.data.Dataset.from_tensor_slices((train_x, train_y)).repeat().shuffle(2000, seed=SEED)
dataset = dataset.batch(GLOBAL_BATCH // hvd.size()).shard(
    hvd.size(), hvd.rank()
)  # (2) every worker has its own batches

model = tf.keras.Sequential([
    tf.keras.layers.Input((8, 8, 1)),
    tf.keras.layers.Conv2D(32, 3, activation="relu"),
    tf.keras.layers.Conv2D(64, 3, activation="relu"),
    tf.keras.layers.MaxPooling2D(),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(10),
])  # fmt: skip
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
optimizer.build(model.trainable_variables)


@tf.function
def training_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """One step; returns the loss of this worker's batch."""
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    tape = hvd.DistributedGradientTape(tape)  # (3) average gradients
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


hvd.broadcast_variables(model.variables, root_rank=0)  # (4) start from the same weights
hvd.broadcast_variables(optimizer.variables, root_rank=0)

for step, (x, y) in enumerate(dataset.take(STEPS)):
    loss = hvd.allreduce(training_step(x, y), name="loss")
    if step % 50 == 0 and hvd.rank() == 0:  # (5) one worker speaks
        print(f"step {step}: loss {float(loss):.3f}")

mine = slice(hvd.rank(), None, hvd.size())
right = tf.argmax(model(test_x[mine]), axis=1) == test_y[mine]
total = hvd.allreduce(tf.stack([tf.reduce_sum(tf.cast(right, tf.float32)), float(len(right))]), op=hvd.Sum)
if hvd.rank() == 0:
    print(f"test accuracy {float(total[0] / total[1]):.3f} on {hvd.size()} worker(s)")
hvd.shutdown()
