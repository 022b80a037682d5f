"""TensorFlow as the slides of 2018 had it: a graph, an optimizer, hooks, and a monitored session.

    farandole run --horovod -np 2 python examples/talks_2018/tensorflow_session.py

Lines marked "removed" say which name TensorFlow, or a download, took away since; the part marked "added" says what was
learned. All the others are those of 2018.
"""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf  # removed: graphs, sessions and their optimizers, from "tensorflow" itself in 2.0
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

tf.disable_eager_execution()  # removed: graphs as the default, in TensorFlow 2.0

# Initialize Horovod
hvd.init()

# Pin GPU to be used
config = tf.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = str(hvd.local_rank())


# removed: tf.contrib.learn.datasets.mnist, with tf.contrib in 2.0; it is a download as well
images, labels = load_digits(return_X_y=True)
train_images, test_images, train_labels, test_labels = train_test_split(images / 16, labels, random_state=7)


def train_input_generator(seed, batch_size=32):
    random = np.random.RandomState(seed)
    while True:
        chosen = random.permutation(len(train_images))[:batch_size]
        yield train_images[chosen], train_labels[chosen]


def conv_model(feature):
    # removed: tf.contrib.layers in 2.0, and tf.layers where Keras 3 is installed
    kernel = tf.get_variable("kernel", [3, 3, 1, 32])
    hidden = tf.get_variable("hidden", [512, 128])
    output = tf.get_variable("output", [128, 10])
    feature = tf.reshape(feature, [-1, 8, 8, 1])
    conv = tf.nn.relu(tf.nn.conv2d(feature, kernel, strides=[1, 1, 1, 1], padding="SAME"))
    pool = tf.nn.max_pool(conv, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    dense = tf.nn.relu(tf.matmul(tf.reshape(pool, [-1, 512]), hidden))
    return tf.matmul(dense, output)


# Build model
image = tf.placeholder(tf.float32, [None, 64], name="image")
label = tf.placeholder(tf.int64, [None], name="label")
logits = conv_model(image)
loss = tf.losses.sparse_softmax_cross_entropy(label, logits)

opt = tf.train.AdagradOptimizer(0.01 * hvd.size())

# Add Horovod Distributed Optimizer
opt = hvd.DistributedOptimizer(opt)

# Make training operation
global_step = tf.train.get_or_create_global_step()
train_op = opt.minimize(loss, global_step=global_step)

# added: how well it learned, and whether all ranks learned the same
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), label), tf.float32))
learned = tf.train.FinalOpsHook([accuracy, *tf.trainable_variables()], {image: test_images, label: test_labels})

hooks = [
    # Broadcast initial variable states from rank 0 to all other processes
    hvd.BroadcastGlobalVariablesHook(0),
    tf.train.StopAtStepHook(last_step=1000 // hvd.size()),
    learned,
]

# Save checkpoints only on worker 0 to prevent other workers from corrupting them
checkpoint_dir = "out/talks_2018/train_logs" if hvd.rank() == 0 else None

# The MonitoredTrainingSession takes care of session initialization, restoring from a checkpoint, and saving to one
training_batches = train_input_generator(seed=hvd.rank())
with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as mon_sess:
    while not mon_sess.should_stop():
        # Perform synchronous training
        image_, label_ = next(training_batches)
        mon_sess.run(train_op, feed_dict={image: image_, label: label_})

# added: how well it learned, and whether all ranks learned the same
accuracy, *weights = learned.final_ops_values
models = hvd.allgather_object(weights)
same = all(np.array_equal(one, other) for model in models for one, other in zip(model, weights, strict=True))
if hvd.rank() == 0:
    print(f"test accuracy {accuracy:.3f} on {hvd.size()} worker(s), models are equal: {same}")
