"""Names of ranks in the texts of the controller.

    >>> name_ranks([0, 1, 2, 5, 6], ["a", "a", "a", "b", "b", "b", "b"])
    'ranks 0-2 on a, ranks 5-6 on b'

Lists that are too long to read are shortened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

MOST_RANKS = 12
MOST_CHARACTERS = 240


def name_rank(rank: int, hosts: Sequence[str]) -> str:
    """One rank and its host: ``rank 3 on node7``."""
    return f"rank {rank} on {hosts[rank]}"


def name_ranks(ranks: Iterable[int], hosts: Sequence[str]) -> str:
    """Many ranks by host, as ranges: ``ranks 0-2 on a, rank 5 on b``."""
    by_host: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        by_host.setdefault(hosts[rank], []).append(rank)
    names = [f"{'ranks' if len(own) > 1 else 'rank'} {_runs(own)} on {host}" for host, own in by_host.items()]
    return list_some(names)


def name_numbers(numbers: Iterable[int]) -> str:
    """Many ranks whose hosts are unknown: ``ranks 0-2, 5``."""
    own = sorted(numbers)
    return f"{'ranks' if len(own) > 1 else 'rank'} {_runs(own)}"


def by_saying(said: Mapping[int, str], hosts: Sequence[str]) -> str:
    """Ranks grouped by their values: ``rank 0 on a said float32; ranks 1-3 on a said int64``."""
    ranks: dict[str, list[int]] = {}
    for rank, saying in sorted(said.items()):
        ranks.setdefault(saying, []).append(rank)
    return list_some([f"{name_ranks(who, hosts)} said {shorten(saying)}" for saying, who in ranks.items()], "; ")


def list_some(pieces: list[str], separator: str = ", ") -> str:
    """Join all ``pieces``, or the first ones and the number of the others."""
    kept = separator.join(pieces[:MOST_RANKS])
    return kept if len(pieces) <= MOST_RANKS else f"{kept}{separator}and {len(pieces) - MOST_RANKS} more"


def shorten(text: str) -> str:
    """``text``, or its beginning if it is too long for a line of a report."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}... ({len(text)} characters)"


def _runs(ranks: list[int]) -> str:
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return list_some([str(first) if first == last else f"{first}-{last}" for first, last in runs])
