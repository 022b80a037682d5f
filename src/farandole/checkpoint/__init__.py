"""Durable checkpoints: atomic, checksummed, asynchronous, written by one rank or sharded over all.

    from farandole.torch import Checkpoints

    with Checkpoints("runs/a", keep=3) as checkpoints:
        found = checkpoints.restore()                       # the newest that is whole, or None
        ...
        checkpoints.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

Training goes on while a checkpoint is written. A torn, truncated, changed or foreign checkpoint is never restored: the
last good checkpoint is, and the log has the reasons against newer ones.
"""

from farandole.checkpoint.checkpoints import Checkpoints
from farandole.checkpoint.codec import Codec
from farandole.checkpoint.restoring import Restored

__all__ = ["Checkpoints", "Codec", "Restored"]
