"""Linear classifiers of patches: what a network must beat.

baselines(synthetic(4096, 2048, spectral_gap=0.6))      # {"band means": 0.7, "band statistics": 0.8}
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.preprocessing import StandardScaler

from examples.bigearthnet.data import Data, Items


def baselines(data: Data) -> dict[str, float]:
    """Micro-F1 on the test patches of logistic regressions on what is known of each band of a patch.

    "band means": its mean; "band statistics": mean, standard deviation, and the 10th, 50th and 90th percentile.
    """
    images, labels = zip(_arrays(data.train), _arrays(data.test), strict=True)
    found = {}
    for name, of_bands in (("band means", _means), ("band statistics", _statistics)):
        scale = StandardScaler().fit(of_bands(images[0]))
        linear = MultiOutputClassifier(LogisticRegression(max_iter=2000))
        linear.fit(scale.transform(of_bands(images[0])), labels[0])
        said = linear.predict(scale.transform(of_bands(images[1])))
        found[name] = float(f1_score(labels[1], said, average="micro"))
    return found


def _arrays(items: Items) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (torch.stack([items[i][part] for i in range(len(items))]).numpy() for part in (0, 1))
    return images, labels


def _means(images: np.ndarray) -> np.ndarray:
    return images.mean(axis=(2, 3))


def _statistics(images: np.ndarray) -> np.ndarray:
    pixels = images.reshape(*images.shape[:2], -1)
    quantiles = np.quantile(pixels, (0.1, 0.5, 0.9), axis=2)
    return np.concatenate([pixels.mean(axis=2), pixels.std(axis=2), *quantiles], axis=1)
