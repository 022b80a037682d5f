"""Cost models of a step of data-parallel training: networks, all-reduces, overlap, stragglers, control plane.

    >>> aries = FABRICS["aries"]
    >>> round(1e3 * halving_doubling(28.2e6, 8192, aries), 2)           # CosmoFlow's gradients on 8,192 nodes, in ms
    7.1
    >>> round(stragglers(8192, 1.0), 2)                                  # in standard deviations of one rank's step
    4.25

Times are in seconds, sizes in bytes; p is a number of ranks, or of hosts. All functions are pure.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

from farandole.errors import UsageError


@final
class Fabric(NamedTuple):
    """Time of a message of n bytes: ``alpha_s`` + n ``beta_s``, per rank inside of a host, per host between hosts."""

    alpha_s: float
    beta_s: float


NVLINK = Fabric(2e-6, 1 / 50e9)
FABRICS = {
    "aries": Fabric(2e-6, 1 / 8e9),  # Cori, Theta: .25 to 3.7 us by MPI, 8 GB/s a node (NERSC, configuration of Cori)
    "edr-dual": Fabric(1.5e-6, 1 / 23e9),  # Summit: 23 GB/s a node (OLCF, Summit user guide), latency recalled
    "slingshot-11": Fabric(2e-6, 1 / 100e9),  # Perlmutter: four NICs of 25 GB/s a node, recalled
    "25gbe": Fabric(5e-6, 1 / 3.1e9),  # RoCE, as in Horovod's test with 512 GPUs (arXiv 1802.05799)
    "nvlink2": NVLINK,  # two bricks of 25 GB/s between two GPUs of Summit
}
"""Networks by name. Recalled values are marked; measured ones are better (``farandole bench``)."""

HOUSE_RADIX = 32
"""Children of a relay in Farandole's control tree."""


def ring(nbytes: float, p: float, network: Fabric) -> float:
    """All-reduce in a ring: 2 (p-1) alpha + 2 (p-1)/p n beta (Patarasuk and Yuan 2009)."""
    return 2 * (p - 1) * network.alpha_s + 2 * (p - 1) / p * nbytes * network.beta_s


def halving_doubling(nbytes: float, p: float, network: Fabric) -> float:
    """All-reduce by recursive halving and doubling: 2 lg p alpha + 2 (p-1)/p n beta (Thakur et al. 2005, Rabenseifner).

    For p that is no power of two this is a bound that good implementations nearly reach.
    """
    return 2 * math.log2(p) * network.alpha_s + 2 * (p - 1) / p * nbytes * network.beta_s


def hierarchical(nbytes: float, per_host: float, hosts: float, inside: Fabric, between: Fabric) -> float:
    """All-reduce in a ring inside of each host, and by halving and doubling between hosts (as Kurth et al. 2018)."""
    return ring(nbytes, per_host, inside) + halving_doubling(nbytes, hosts, between)


def stragglers(p: float, sigma_s: float) -> float:
    """Expected wait for the slowest of p ranks whose steps vary by ``sigma_s``: sigma sqrt(2 ln p), a bound from above.

    The largest of p Gaussians comes near to it slowly (Gumbel 1958): the bound is 11 % too large at 27,360.
    """
    return sigma_s * math.sqrt(2 * math.log(p))


def exposed(comm_s: float, backward_s: float, buckets: int) -> float:
    """Part of ``comm_s`` after the end of a backward pass: buckets become ready evenly, and are sent one by one.

    >>> round(exposed(0.4, 1.0, 10), 3), round(exposed(3.0, 1.0, 10), 3)     # the last bucket; all but what was hidden
    (0.04, 2.1)
    """
    if buckets < 1:
        raise UsageError(f"buckets={buckets}: at least 1 is needed")
    return max(comm_s / buckets, comm_s - backward_s * (1 - 1 / buckets))


def flat_control(p: float, tensors: float, message_s: float) -> float:
    """Time of a coordinator that gets a message for each tensor from each rank: tensors p c (Kurth et al. 2018)."""
    return tensors * p * message_s


def tree_control(p: float, tensors: float, message_s: float, radix: int = HOUSE_RADIX) -> float:
    """The same through a tree in which no node has more than ``radix`` children: tensors c (r+1) ceil(log_r p)."""
    levels = math.ceil(math.log(max(p, 1)) / math.log(radix) - 1e-9)
    return tensors * message_s * (radix + 1) * levels


def readiness(queue_s: float, slowest_s: float) -> float:
    """Time after the mean rank until a coordinator has all messages: they queue from the first rank on.

    >>> readiness(0.01, 0.1), readiness(1.0, 0.1)           # the slowest rank comes last; the queue lasts longer
    (0.1, 0.9)

    Ranks send from ``slowest_s`` before the mean to as much after it; the queue takes ``queue_s`` in all.
    """
    return max(slowest_s, queue_s - slowest_s)


def network(text: str) -> Fabric:
    """Fabric by name, or from "ALPHA,RATE" in microseconds and GB/s.

    >>> network("2,8") == network("aries") == FABRICS["aries"]
    True
    """
    if text in FABRICS:
        return FABRICS[text]
    try:
        alpha_us, rate = (float(each) for each in text.split(","))
    except ValueError:
        alpha_us = rate = -1.0
    if alpha_us < 0 or rate <= 0:
        legal = ", ".join(FABRICS)
        raise UsageError(f"network {text!r}: give one of {legal}, or latency and rate in us and GB/s: 5,3.1")
    return Fabric(alpha_us * 1e-6, 1 / (rate * 1e9))
