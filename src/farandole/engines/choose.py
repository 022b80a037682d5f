"""Which engine a job gets: what can run here, and one table that chooses.

>>> choose("auto", ["a", "a"], [["solo", "shm"], ["solo", "shm", "gloo"]])
('shm', 'all 2 ranks are on one host')
>>> choose("auto", ["a", "b"], [["solo", "shm", "gloo"]] * 2)
('gloo', '2 ranks are on 2 hosts')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeAlias, final

from farandole.errors import UnsupportedError

SHM_MEMBERS = 64
"""How many ranks of a host one shared segment connects."""


Find: TypeAlias = Callable[[str], object | None]
"""Looks for a module without importing it, like ``importlib.util.find_spec``."""

_MISSING = {"farandole._native": "the native core farandole._native is not built", "torch": "torch is not installed"}


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine: what it is for, the modules it needs, and what to do where they are missing."""

    name: str
    serves: str
    needs: tuple[str, ...]
    remedy: str

    def lack(self, find: Find = find_spec) -> str:
        """Why this process cannot use it; "" if it can."""
        return next((_MISSING[module] for module in self.needs if find(module) is None), "")


CANDIDATES = {
    candidate.name: candidate
    for candidate in (
        Candidate("solo", "jobs of one rank", (), ""),
        Candidate(
            "shm",
            "ranks of one host, in shared memory",
            ("farandole._native",),
            "install a wheel of farandole, or type: make native",
        ),
        Candidate(
            "gloo", "any hosts, over TCP", ("farandole._native", "torch"), "type: pip install 'farandole[torch]'"
        ),
    )
}
"""Every engine there is, in the order in which ``farandole check`` lists them."""


def usable(find: Find = find_spec) -> list[str]:
    """The names of the engines that this process could use; imports no framework."""
    return [name for name, candidate in CANDIDATES.items() if not candidate.lack(find)]


def choose(asked: str, hosts: Sequence[str], usable: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The engine of a job and why; a pure function.

    ``hosts[r]`` is the host of rank ``r`` and ``usable[r]`` names the engines it could use. ``asked`` is an engine's
    name or ``auto``. Raises ``UnsupportedError`` when none fits, with the rank and host that lacks it, and the remedy.
    """
    if asked != "auto":
        if asked not in CANDIDATES:
            raise UnsupportedError(f"there is no engine {asked!r}; the legal names are: auto, {', '.join(CANDIDATES)}")
        if problem := _problem(asked, hosts, usable):
            raise UnsupportedError(f"engine {asked} was asked for, but {problem}")
        return asked, "it was asked for"
    problems = []
    for name in CANDIDATES:
        problem = _problem(name, hosts, usable)
        if not problem:
            return name, _place(hosts)
        problems.append(f"{name}: {problem}")
    raise UnsupportedError("no engine can serve this job. " + "; ".join(problems))


def _problem(name: str, hosts: Sequence[str], usable: Sequence[Sequence[str]]) -> str:
    size, machines = len(hosts), len(set(hosts))
    if name == "solo" and size > 1:
        return f"it serves one rank and this job has {size}; type --engine auto"
    if name == "shm" and machines > 1:
        return f"it serves one host and this job has {machines} ({', '.join(sorted(set(hosts)))}); type --engine auto"
    if name == "shm" and size > SHM_MEMBERS:
        return f"it serves at most {SHM_MEMBERS} ranks and this job has {size}; type --engine gloo"
    for rank, (host, names) in enumerate(zip(hosts, usable, strict=True)):
        if name not in names:
            return f"rank {rank} on {host} cannot use it; there, {CANDIDATES[name].remedy}"
    return ""


def _place(hosts: Sequence[str]) -> str:
    if len(hosts) == 1:
        return "this is a job of one process"
    machines = len(set(hosts))
    return f"all {len(hosts)} ranks are on one host" if machines == 1 else f"{len(hosts)} ranks are on {machines} hosts"
