"""Program that checks Monte-Carlo dropout of a model of PyTorch or Keras: "torch" or "keras".

python dropping.py keras                # on the backend of KERAS_BACKEND
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.errors import UsageError
from farandole.inference import Draw, classification, monte_carlo, predict
from farandole.inference.worker import as_numpy

X = np.random.default_rng(0).normal(size=(12, 5)).astype("float32")
DRAW = Draw(seed=1, samples=range(12))
PASSES = 100


def torch_model() -> Any:
    """Linear model with a layer of dropout, and one of batch normalization."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(5, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 3)
    )


def keras_model() -> Any:
    """The same, in a model within a model, with a layer of noise."""
    import keras

    keras.utils.set_random_seed(0)
    inner = keras.Sequential([keras.Input((16,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    layers = [keras.layers.Dense(16), inner, keras.layers.GaussianNoise(1.0), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((5,)), *layers])


def torch_state(model: Any) -> list[Any]:
    """All that a pass might change."""
    import torch

    modes = np.array([each.training for each in model.modules()])
    return [modes, torch.get_rng_state().numpy(), *[each.numpy().copy() for each in model.state_dict().values()]]


def keras_state(model: Any) -> list[Any]:
    """All that a pass might change."""
    return [as_numpy(each.value).copy() for each in model.variables]


def torch_plain(model: Any) -> Any:
    """Answer without dropout."""
    import torch

    model.eval()
    with torch.no_grad():
        return model(torch.as_tensor(X)).numpy()


def keras_plain(model: Any) -> Any:
    """Answer without dropout."""
    return as_numpy(model(X, training=False))


def check_masks_of_torch() -> None:
    """Compare with masks that are drawn by hand."""
    import torch

    model = torch_model()
    found = monte_carlo(model, passes=3)(X, draw=DRAW)
    model.eval()
    with torch.no_grad():
        hidden = model[1](model[0](torch.as_tensor(X)))
        for number in range(3):
            torch.manual_seed(DRAW.of_pass(number).batch_seed())
            mask = torch.nn.functional.dropout(torch.ones_like(hidden), 0.5, training=True)
            assert np.allclose(found[number], model[3](hidden * mask).numpy(), atol=1e-6)


def check(model: Any, state: Any, plain: Any) -> None:
    """Compare passes with each other, and their mean with the answer without dropout."""
    before = state(model)
    asked = monte_carlo(model, passes=PASSES)
    found = asked(X, draw=DRAW)
    assert found.shape == (PASSES, 12, 3)
    assert all((was == now).all() for was, now in zip(before, state(model), strict=True))
    assert (found == asked(X, draw=DRAW)).all()
    assert (found != asked(X, draw=Draw(2, range(12)))).any()
    assert len({each.tobytes() for each in found}) == PASSES
    # Dropout keeps the mean of a linear model; statistics of a batch, or noise, would change its spread by much more.
    error = found.std(axis=0) / np.sqrt(PASSES)
    assert (np.abs(found.mean(axis=0) - plain(model)) < 5 * error).all()
    assert (error > 0.001).all()
    with tempfile.TemporaryDirectory() as folder:
        x = np.random.default_rng(3).normal(size=(90, 5)).astype("float32")
        asked = classification(monte_carlo(model, passes=5), logits=True)
        one, two = (
            predict(asked, x, Path(folder) / f"{workers}", workers=workers, batch_size=8, block_batches=2, seed=4)
            for workers in (None, 2)
        )
        assert all(one[field].tobytes() == two[field].tobytes() for field in one)


def check_refusal(model: Any) -> None:
    """See that a model without dropout is refused."""
    with pytest.raises(UsageError, match=r"ensemble\("):
        monte_carlo(model)


def main() -> None:
    """Check one framework."""
    if sys.argv[1] == "torch":
        import torch

        check(torch_model(), torch_state, torch_plain)
        check_masks_of_torch()
        check_refusal(torch.nn.Linear(2, 1))
    else:
        import keras

        check(keras_model(), keras_state, keras_plain)
        check_refusal(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    print("checked")


if __name__ == "__main__":
    main()
