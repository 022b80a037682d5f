"""What Horovod has and this release of Farandole has not."""

from __future__ import annotations

import farandole

_COMES = {
    "horovod.tensorflow": "TensorFlow",
    "horovod.keras": "Keras",
    "horovod.mxnet": "MXNet",
    "horovod.spark": "running on Spark",
    "horovod.ray": "running on Ray",
    "horovod.torch.elastic": "elastic training",
}


def explain(module: str) -> str:
    """Why ``module`` cannot be had, and what can."""
    return (
        f"{module} is not in Farandole {farandole.__version__}: {_COMES[module]} comes in a later release, this one "
        "has horovod.torch. To use an installed Horovod instead, start the script without --horovod"
    )
