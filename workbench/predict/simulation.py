"""A step of training on up to 27,360 ranks in virtual time, message by message, compared with the formulas for it.

    python -m workbench.predict.simulation          # a table of both

Every rank computes for a random time and offers its buckets one after the other. Each bucket goes around a ring in its
host, is reduced between hosts, in a ring or by halving and doubling, and goes around the host again: a message starts
when both sides are ready. The control plane is a queue at the coordinator, or at each node of a tree. Formulas of
``farandole.predict.costs`` are used only for comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole.predict import costs
from farandole.predict.costs import FABRICS, NVLINK, Fabric

Times: TypeAlias = npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class SimulatedStep:
    """Step of ``hosts`` with ``per_host`` ranks; ``sigma`` is a share of compute; ``radix`` 0: a flat coordinator."""

    hosts: int
    per_host: int = 6
    compute_s: float = 1.0
    sigma: float = 0.02
    nbytes: float = 174e6
    buckets: int = 8
    overlaps: bool = True
    radix: int = 32
    tensors: int = 100
    message_s: float = 1e-6
    inside: Fabric = NVLINK
    between: Fabric = FABRICS["edr-dual"]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.hosts * self.per_host

    @property
    def is_ring(self) -> bool:
        """True if hosts form a ring; powers of two exchange by halving and doubling."""
        return bool(self.hosts & (self.hosts - 1))

    def simulated(self, seed: int = 0) -> float:
        """Seconds until the last rank has the last bucket."""
        random = np.random.default_rng(seed)
        compute = self.compute_s * np.maximum(0.1, random.normal(1.0, self.sigma, (self.hosts, self.per_host)))
        decided = self._controlled(compute.ravel())
        free = np.zeros_like(compute)
        for k in range(self.buckets):
            share = 1 / 3 + 2 / 3 * (k + 1) / self.buckets if self.overlaps else 1.0
            free = self._reduced(np.maximum(free, share * compute), self.nbytes / self.buckets)
        return float(max(free.max(), compute.max())) + decided - float(compute.max())

    def _reduced(self, ready: Times, nbytes: float) -> Times:
        """Time at which each rank has the sum, from the times at which ranks have contributed."""
        g, n = self.per_host, self.hosts
        hop = self.inside.alpha_s + nbytes / g * self.inside.beta_s
        for _ in range(g - 1):
            ready = np.maximum(ready, np.roll(ready, 1, axis=1)) + hop
        hosts = ready.max(axis=1)
        if self.is_ring:
            hop_s = self.between.alpha_s + nbytes / n * self.between.beta_s
            for _ in range(2 * (n - 1)):
                hosts = np.maximum(hosts, np.roll(hosts, 1)) + hop_s
        else:
            halves = [nbytes / 2 ** (k + 1) for k in range(round(math.log2(n)))]
            for k, size in [*enumerate(halves), *reversed([*enumerate(halves)])]:
                other = hosts[np.arange(n) ^ (1 << k)]
                hosts = np.maximum(hosts, other) + self.between.alpha_s + size * self.between.beta_s
        ready = np.repeat(hosts[:, None], g, axis=1)
        for _ in range(g - 1):
            ready = np.maximum(ready, np.roll(ready, 1, axis=1)) + hop
        return ready

    def _controlled(self, ready: Times) -> float:
        """Time at which the coordinator knows that all are ready: a queue at each node, one message after the other."""
        cost_s = self.tensors * self.message_s
        while len(ready) > 1:
            children = self.radix or len(ready)
            padded = np.full(math.ceil(len(ready) / children) * children, -np.inf)
            padded[: len(ready)] = ready
            queue = np.sort(padded.reshape(-1, children), axis=1)
            left = np.arange(children, 0, -1)
            ready = (queue + left * cost_s).max(axis=1) + (cost_s if self.radix else 0.0)
        return float(ready[0])

    def formula(self) -> float:
        """The same time by the formulas."""
        exchange, bucket = costs.ring if self.is_ring else costs.halving_doubling, self.nbytes / self.buckets
        comm = costs.ring(bucket, self.per_host, self.inside) + exchange(bucket, self.hosts, self.between)
        comm *= self.buckets
        backward = 2 / 3 * self.compute_s if self.overlaps else 0.0
        tail = costs.exposed(comm, backward, self.buckets) if self.overlaps else comm
        control = (
            costs.tree_control(self.ranks, self.tensors, self.message_s, self.radix)
            if self.radix
            else costs.flat_control(self.ranks, self.tensors, self.message_s)
        )
        slowest = costs.stragglers(self.ranks, self.sigma * self.compute_s)
        return self.compute_s + tail + costs.readiness(control, slowest)


def main() -> None:
    """Print both times for some numbers of hosts."""
    for hosts in (1, 2, 16, 170, 1024, 4560):
        for step in (SimulatedStep(hosts), SimulatedStep(hosts, overlaps=False), SimulatedStep(hosts, radix=0)):
            seen, said = step.simulated(), step.formula()
            told = f"{'overlap' if step.overlaps else 'in turn'}, {'tree' if step.radix else 'flat'}"
            print(
                f"{step.ranks:6} ranks, {told}: simulated {seen:.3f} s, formula {said:.3f} s ({said / seen - 1:+.1%})"
            )


if __name__ == "__main__":
    main()
