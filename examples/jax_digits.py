"""Train a small network on handwritten digits with JAX and optax.

    farandole run -np 2 python examples/jax_digits.py       # two workers on this machine

The data are the 1797 real digits of 8 x 8 pixels that scikit-learn ships. The lines marked (1) to (5) are what makes a
training script distributed; everything else is ordinary JAX.
"""

import itertools
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import farandole.jax as hvd

STEPS, GLOBAL_BATCH, LEARNING_RATE, SEED = 400, 64, 0.05, 7
LAYERS = (64, 128, 64, 10)
Params: TypeAlias = list[tuple[jax.Array, jax.Array]]  # weights and biases of each layer

hvd.init()  # (1) join the other workers

images, labels = load_digits(return_X_y=True)
images = images.astype(np.float32) / 16
train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=SEED, stratify=labels)


def model_of(key: jax.Array) -> Params:
    """Random weights."""
    keys = jax.random.split(key, len(LAYERS) - 1)
    shapes = itertools.pairwise(LAYERS)
    return [(jax.random.normal(k, s) * jnp.sqrt(2 / s[0]), jnp.zeros(s[1])) for k, s in zip(keys, shapes, strict=True)]


def scores_of(params: Params, x: jax.Array) -> jax.Array:
    """Scores of the ten digits."""
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss_of(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(scores_of(params, x), y).mean()


optimizer = hvd.DistributedOptimizer(optax.sgd(LEARNING_RATE, momentum=0.9))  # (2) average gradients
params = hvd.broadcast_parameters(model_of(jax.random.PRNGKey(SEED)), root_rank=0)  # (3) start from the same weights
state = optimizer.init(params)


@jax.jit
def training_step(
    params: Params, state: optax.OptState, x: jax.Array, y: jax.Array
) -> tuple[Params, optax.OptState, jax.Array]:
    """One step; the last value is the loss of all workers' batches."""
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, hvd.allreduce(loss, name="loss")


order = np.random.default_rng(SEED)
for step in range(STEPS):
    rows = order.integers(len(train_x), size=GLOBAL_BATCH)[hvd.rank() :: hvd.size()]  # (4) each worker its own rows
    params, state, loss = training_step(params, state, train_x[rows], train_y[rows])
    if step % 100 == 0 and hvd.rank() == 0:  # (5) one worker speaks
        print(f"step {step}: loss {float(loss):.3f}")

if hvd.rank() == 0:
    accuracy = (scores_of(params, test_x).argmax(1) == test_y).mean()
    print(f"test accuracy {float(accuracy):.3f} on {hvd.size()} worker(s)")
hvd.shutdown()
