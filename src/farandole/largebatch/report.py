"""Reports of a training script to its run, for the rules and the policy of the leases of the run.

hvd.elastic.report(val_acc=0.91)                        # --when 'val_acc>=0.9' --then 'np=2'
hvd.elastic.report(noise.advise(samples=..., ...))      # the run may grow, or shrink
"""

from __future__ import annotations

import math

from farandole.control.run_messages import AdviceView, Progressed
from farandole.errors import UsageError
from farandole.largebatch.advice import Advice, Advised
from farandole.runtime.session.init import current


def report(advice: Advised | None = None, *, remaining: float = 1.0, **metrics: float) -> None:
    """Report metrics by name, and advice about the number of workers, to the run of this training.

        hvd.elastic.report(val_acc=0.91, loss=0.31)

    The last value of each name on rank 0 counts: on other ranks, and in jobs without leases, nothing happens. A call
    takes microseconds, and does not wait. ``remaining``: share of the training that is still to do, from 0 to 1, to
    compare the gain from more workers with the cost of a change.

    Raises ``UsageError`` for a metric that is no finite number.
    """
    values = {}
    for name, value in metrics.items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"report({name}={value!r}): give a number, such as {name}={name}.item()") from error
        if not math.isfinite(values[name]):
            raise UsageError(f"report({name}={value!r}): a rule cannot be decided by what is not finite")
    if not 0 <= remaining <= 1:
        raise UsageError(f"report(remaining={remaining!r}): give the share that is still to do, from 0 to 1")
    current().report(Progressed(values, None if advice is None else _viewed(advice, remaining)))


def _viewed(advised: Advised, remaining: float) -> AdviceView:
    if not isinstance(advised, Advice):
        return AdviceView(refusal=str(advised))
    now = advised.prospects[min(advised.current, len(advised.prospects)) - 1]
    saves_s = remaining * (now.seconds - advised.recommended.seconds)
    return AdviceView(
        advised.workers, advised.estimate.low, advised.estimate.high, saves_s, batch=now.batch / now.workers
    )
