"""Uncertainty from several answers to the same sample: aleatoric, of the data, and epistemic, of the model.

``aleatoric`` would stay with endless training data, ``epistemic`` would not: it is where the answers differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
import numpy.typing as npt

from farandole.errors import UsageError
from farandole.inference.draws import Draw
from farandole.inference.worker import as_numpy, takes_draw

Floats = npt.NDArray[np.floating[Any]]

Passes = Callable[..., Any]
"""Function that answers a batch several times, as ``ensemble`` and ``monte_carlo`` make them."""


def entropy(probabilities: Any) -> Floats:
    """Entropy of distributions along the last axis, in nats.

    >>> entropy([[0.5, 0.5], [1.0, 0.0]]).round(4).tolist()
    [0.6931, 0.0]
    """
    p = np.asarray(probabilities)
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(p > 0, p * np.log(p), 0).sum(axis=-1) + 0.0  # type: ignore[no-any-return] # + 0.0: no -0.0


def entropy_parts(probabilities: Any) -> dict[str, Floats]:
    """Mean of several distributions, its entropy, and the two parts of the entropy, in nats.

    >>> parts = entropy_parts([[[1.0, 0.0]], [[0.0, 1.0]]])         # two members are sure, of different classes
    >>> {name: part.round(4).tolist() for name, part in parts.items()}
    {'mean': [[0.5, 0.5]], 'total': [0.6931], 'aleatoric': [0.0], 'epistemic': [0.6931]}

    ``probabilities`` have the shape (passes, ..., classes), ``mean`` (..., classes), the others (...). The aleatoric
    part is the mean of the entropies, the epistemic part is the rest, the mutual information of class and model:
    Depeweg et al. 2018 (arXiv:1710.07283), eq. 2, and before it Houlsby et al. 2011 (arXiv:1112.5745).
    """
    p = np.asarray(probabilities)
    mean = p.mean(axis=0)
    total, aleatoric = entropy(mean), entropy(p).mean(axis=0)
    return {"mean": mean, "total": total, "aleatoric": aleatoric, "epistemic": np.maximum(total - aleatoric, 0)}


def variance_parts(means: Any, variances: Any = None) -> dict[str, Floats]:
    """Mean of several predicted distributions, its variance, and the two parts of the variance.

    >>> parts = variance_parts([[0.0], [2.0]], [[1.0], [3.0]])
    >>> {name: part.tolist() for name, part in parts.items()}
    {'mean': [1.0], 'variance': [3.0], 'aleatoric': [2.0], 'epistemic': [1.0]}

    ``means``, and ``variances`` if the model predicts its noise, have the shape (passes, ...), the results (...). By
    the law of total variance aleatoric is the mean of the variances, epistemic the variance of the means. Kendall and
    Gal 2017 (arXiv:1703.04977), eq. 9. Their sum is the variance of the mixture, as in Lakshminarayanan et al. 2017
    (arXiv:1612.01474), section 2.4.
    """
    m = np.asarray(means)
    epistemic = m.var(axis=0)
    aleatoric = np.zeros_like(epistemic) if variances is None else np.asarray(variances).mean(axis=0)
    return {"mean": m.mean(axis=0), "variance": aleatoric + epistemic, "aleatoric": aleatoric, "epistemic": epistemic}


def classification(passes: Passes, *, logits: bool = False) -> Passes:
    """Function for ``predict`` that reduces several distributions over classes to their mean and its uncertainty.

        predict(classification(ensemble(members), logits=True), images, "out.zarr", workers=8)

    ``passes`` returns (passes, samples, ..., classes): probabilities, or ``logits``. The answers have the fields of
    ``entropy_parts``.
    """
    return _Classification(passes, logits)


def regression(passes: Passes) -> Passes:
    """Function for ``predict`` that reduces several means, or pairs of mean and variance, as ``variance_parts`` does.

        predict(regression(ensemble(members)), source, "out.h5", workers=8)

    ``passes`` returns (passes, samples, ...), or two such arrays. Raises ``UsageError`` for other answers.
    """
    return _Regression(passes)


class _Reduced:
    """Function of several answers; a class, so that it can be pickled for workers."""

    def __init__(self, passes: Passes) -> None:
        self._passes, self._draws = passes, takes_draw(passes)

    def _all(self, batch: Any, draw: Draw) -> Any:
        return self._passes(batch, draw=draw) if self._draws else self._passes(batch)


@final
class _Classification(_Reduced):
    def __init__(self, passes: Passes, logits: bool) -> None:
        super().__init__(passes)
        self._logits = logits

    def __call__(self, batch: Any, draw: Draw) -> dict[str, Floats]:
        p = as_numpy(self._all(batch, draw))
        if self._logits:
            p = np.exp(p - p.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
        return entropy_parts(p)


@final
class _Regression(_Reduced):
    def __call__(self, batch: Any, draw: Draw) -> dict[str, Floats]:
        found = self._all(batch, draw)
        if not isinstance(found, tuple):
            return variance_parts(as_numpy(found))
        if len(found) != 2:
            raise UsageError(f"regression() of {len(found)} arrays: return the mean, or a pair of mean and variance")
        return variance_parts(*map(as_numpy, found))
