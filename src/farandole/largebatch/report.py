"""Reports of a training script to the run that it belongs to, for the rules and the policy of its leases.

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
    """Report metrics by name, and advice about the number of workers, to the run that this training belongs to.

        hvd.elastic.report(val_acc=0.91, loss=0.31)

    The last value of each name counts, and that of rank 0: on other ranks, and in jobs without leases, nothing
    happens. It takes microseconds, and waits for nobody. ``remaining`` is the share of the training that is still to
    do, from 0 to 1: what is gained by more workers is weighed against what a change costs.

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
