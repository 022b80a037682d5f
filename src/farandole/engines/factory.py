"""Makes an engine by its name. Each is imported when it is first asked for: gloo needs a framework, others do not."""

from __future__ import annotations

from importlib.util import find_spec

from farandole.engines.choose import CANDIDATES, Find
from farandole.engines.engine import Engine, Exchange, Group
from farandole.errors import UnsupportedError


def make(name: str, group: Group, exchange: Exchange, find: Find = find_spec) -> Engine:
    """One member's engine; collective among ``group``.

    Raises ``UnsupportedError`` for an unknown name and for an engine that this process cannot use.
    """
    candidate = CANDIDATES.get(name)
    if candidate is None:
        raise UnsupportedError(f"there is no engine {name!r}; the legal names are: {', '.join(CANDIDATES)}")
    if lack := candidate.lack(find):
        raise UnsupportedError(f"{group.name(group.rank)} cannot use engine {name}: {lack}; {candidate.remedy}")
    if name == "shm":
        from farandole.engines.shm import ShmEngine

        return ShmEngine(group, exchange)
    if name == "gloo":
        from farandole.engines.torchdist import GlooEngine

        return GlooEngine(group, exchange)
    from farandole.engines.solo import SoloEngine

    return SoloEngine(group)
