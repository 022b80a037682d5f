"""Jobs to search: ``python -m workbench.peers.searches [NAME ...]`` prints the results.

The tests search ``SMALL``; ``make model`` searches ``LARGE``, too, which takes minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from workbench.peers.program import of
from workbench.peers.search import search
from workbench.peers.world import PeerSetup


def job(
    *programs: str,
    warm: str = "a a wait",
    sets: tuple[tuple[int, ...], ...] = (),
    capacity: int = 1024,
    fusion_bytes: int = 0,
    kills: int = 0,
    again: Sequence[str] = (),
) -> PeerSetup:
    """Job of programs in the notation of ``of``."""
    own, later = tuple(map(of, programs)), tuple(map(of, again))
    return PeerSetup(own, of(warm), sets, capacity, fusion_bytes, kills, later)


BOTH = "a b a b wait"
"""Warm-up after which ranks may reduce both names by themselves."""

SMALL = {
    "2 ranks, nothing known": job("a b wait a b", "b a wait b a", warm=""),
    "2 ranks, two names in any order": job("a b wait a", "b a wait a", warm=BOTH),
    "2 ranks, another shape": job("a a2 a", "a a a"),
    "2 ranks, one cannot": job("a -a a", "a a a"),
    "2 ranks, one joins": job("a join a", "a b a join a", warm=BOTH),
    "2 ranks, one joins while another shape is asked for": job("a join", "a2 join"),
    "2 ranks, one cannot while the other has joined": job("join a b", "-a join a b"),
    "2 ranks, one joins, and is asked to say again what it said before": job(
        "a join a", "join a", warm="a a wait a2 wait"
    ),
    "2 ranks, a set of one": job("a@1 a b", "b a", warm=BOTH, sets=((0,),)),
    "2 ranks, room for one name": job("a b a b", "b a b a", capacity=1),
    "2 ranks, engine and peers": job("A a B a", "a A a B", fusion_bytes=2**20),
    "2 ranks, one dies": job("a b a", "b a a", warm=BOTH, kills=1),
    "2 ranks, one dies before or in the engine": job("a A", "A a", kills=1),
    "2 ranks, one dies, and a generation follows": job("a b", "b a", warm=BOTH, kills=1, again=("a a a", "a a a")),
    "3 ranks": job("a", "a", "a"),
    "3 ranks, another shape": job("a", "a2", "a"),
    "3 ranks, one in another set": job("a@1! wait a", "a wait a", "a wait a", sets=((0, 1),)),
}

LARGE = {
    "3 ranks, one cannot": job("a a", "-a a", "a a"),
    "3 ranks, one joins": job("join a", "a join a", "a join a"),
    "2 ranks, two names, three rounds": job("a b a b a b", "b a b a b a", warm=BOTH),
    "2 ranks, both join, one cannot": job("a join -b a b", "a b join b a b", warm=BOTH),
    "2 ranks, room for one name, one dies": job("a b a b", "b a b a", capacity=1, kills=1),
    "3 ranks, two names in any order": job("a b", "b a", "a b", warm=BOTH),
    "3 ranks, one dies": job("a", "a", "a", kills=1),
    "3 ranks, one dies, and a generation follows": job("a", "a", "a", kills=1, again=("a a", "a a", "a a")),
    "3 ranks, one cannot, and leaves": job("-a", "a", "a"),
    "3 ranks, a set of two": job("a@1 a", "a a@1", "a", sets=((0, 1),)),
    "3 ranks, room for one name": job("a b", "b a", "a b", capacity=1),
    "3 ranks, all join, and are asked to say again what they said before": job(
        "a join a", "a join a", "join a", warm="a a wait a2 wait"
    ),
    "3 ranks, one joins, one cannot": job("join a", "a -a join a", "a a join a"),
}


def main(names: Sequence[str]) -> int:
    """Search the named jobs (default: all) and print a row for each; 1 if one has a fault."""
    failed = 0
    for name, setup in {**SMALL, **LARGE}.items():
        if names and name not in names:
            continue
        begin_s = time.process_time()
        found = search(setup, most=10_000_000)
        took_s = time.process_time() - begin_s
        print(f"| {name} | {found.states:,} | {found.transitions:,} | {found.ends:,} | {took_s:.0f} s |", flush=True)
        if found.fault:
            failed = 1
            print(found.fault)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
