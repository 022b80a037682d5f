"""What Horovod has and this release of Farandole has not."""

from __future__ import annotations

import farandole

_COMES = {
    "horovod.tensorflow": "TensorFlow",
    "horovod.keras": "Keras",
}


def explain(module: str) -> str:
    """Why ``module`` cannot be had, and what can."""
    coming = f"; {_COMES[module]} comes in a later release" if module in _COMES else ""
    return (
        f"{module} is not in Farandole {farandole.__version__}, which has horovod.torch{coming}. "
        "To use an installed Horovod instead, start the script without --horovod"
    )
