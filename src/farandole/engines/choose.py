"""Choice of a job's engine: from topology, usable engines and the requested engine to a name and a reason.

>>> choose("auto", ["a", "a"], [["solo", "shm"], ["solo", "shm", "tcp"]])
('shm', 'all 2 ranks are on one host')
>>> choose("auto", ["a", "a", "b", "b"], [["shm", "tcp", "hybrid"]] * 4)
('hybrid+tcp', '4 ranks are on 2 hosts, up to 2 on one')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from farandole.engines.candidates import CANDIDATES
from farandole.errors import UnsupportedError

HYBRID = "hybrid"

SHM_MEMBERS = 64
"""Largest number of ranks per host that the engine ``shm`` connects."""

ACROSS = ("mpi", "tcp", "nccl")
"""Engines for the traffic between hosts: the first that all ranks can use, unless one is requested."""

PREFERENCE = ("nccl", "solo", "shm", HYBRID, "mpi", "tcp")
"""Order in which ``auto`` tries the engines."""


def choose(asked: str, hosts: Sequence[str], usable: Sequence[Sequence[str]], across: str = "auto") -> tuple[str, str]:
    """Choose the engine of a job and return its name and the reason; a pure function.

    ``hosts[r]`` is the host of rank ``r`` and ``usable[r]`` names the engines it could use. ``asked`` is an engine's
    name or ``auto``, ``across`` the engine between hosts: one of ``ACROSS``, or ``auto``. The name of ``hybrid``
    includes that engine, ``hybrid+tcp``. Raises ``UnsupportedError`` if none fits, with the rank and host that lacks
    it, and the remedy.
    """
    if asked != "auto":
        if asked not in CANDIDATES:
            raise UnsupportedError(f"there is no engine {asked!r}; the legal names are: auto, {', '.join(CANDIDATES)}")
        name, problem = _completed(asked, hosts, usable, across)
        if problem:
            raise UnsupportedError(f"engine {asked} was asked for, but {problem}")
        return name, "it was asked for"
    table = considered(hosts, usable, across)
    for name, problem in table.items():
        if not problem:
            return _completed(name, hosts, usable, across)[0], _member(hosts, name)
    said = "; ".join(f"{name}: {problem}" for name, problem in table.items())
    raise UnsupportedError(f"no engine can serve this job. {said}")


def considered(hosts: Sequence[str], usable: Sequence[Sequence[str]], across: str = "auto") -> dict[str, str]:
    """Engines that ``auto`` tries for this job, in this order, each with the objection to it; "" for none."""
    several = len(set(hosts)) > 1
    return {
        name: _completed(name, hosts, usable, across)[1] or (_pointless(hosts) if name == HYBRID else "")
        for name in PREFERENCE
        if not (several and name in ACROSS and across not in ("auto", name))
    }


def base(engine: str) -> str:
    """Engine name without the inter-host engine: ``hybrid`` of ``hybrid+tcp``."""
    return engine.partition("+")[0]


def _completed(name: str, hosts: Sequence[str], usable: Sequence[Sequence[str]], across: str) -> tuple[str, str]:
    """Name, for ``hybrid`` with the inter-host engine, and the reason why it cannot serve this job, or ""."""
    problem = _problem(name, hosts, usable)
    if problem or name != HYBRID:
        return name, problem
    tried = ACROSS if across == "auto" else (across,)
    problems = {crossing: _problem(crossing, hosts, usable) for crossing in tried}
    fit = next((crossing for crossing in tried if not problems[crossing]), None)
    if fit is None and len(set(hosts)) > 1:
        said = "; ".join(f"{crossing}: {text}" for crossing, text in problems.items())
        return name, f"nothing can cross between its hosts. {said}"
    return f"{name}+{fit or tried[0]}", ""


def _problem(name: str, hosts: Sequence[str], usable: Sequence[Sequence[str]]) -> str:
    size, counts = len(hosts), Counter(hosts)
    if name == "solo" and size > 1:
        return f"it serves one rank and this job has {size}; type --engine auto"
    if name == "shm" and len(counts) > 1:
        return f"it serves one host and this job has {len(counts)} ({_few(sorted(counts))}); type --engine auto"
    if name in ("shm", HYBRID) and (most := max(counts.values())) > SHM_MEMBERS:
        return f"it serves at most {SHM_MEMBERS} ranks of a host and one has {most}; type --engine tcp"
    for rank, (host, names) in enumerate(zip(hosts, usable, strict=True)):
        if name not in names:
            candidate = CANDIDATES[name]
            remedies = " or ".join(filter(None, (candidate.besides_remedy, candidate.remedy)))
            return f"rank {rank} on {host} cannot use it, as 'farandole check' there explains; {remedies}"
    return ""


def _pointless(hosts: Sequence[str]) -> str:
    """Reason why ``hybrid`` is not worth choosing; "" if it is."""
    counts = Counter(hosts)
    if len(counts) == 1:
        return "all ranks are on one host"
    return "no host has more than one rank" if max(counts.values()) == 1 else ""


def _member(hosts: Sequence[str], name: str) -> str:
    if name == "nccl":
        return f"all {len(hosts)} ranks have a GPU of their own"
    counts = Counter(hosts)
    if len(hosts) == 1:
        return "this is a job of one process"
    if len(counts) == 1:
        return f"all {len(hosts)} ranks are on one host"
    where = f"{len(hosts)} ranks are on {len(counts)} hosts"
    return f"{where}, up to {max(counts.values())} on one" if name == HYBRID else where


def _few(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{', '.join(hosts[:3])} and {len(hosts) - 3} more"
