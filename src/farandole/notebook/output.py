r"""Output of the ranks of a cell, appended line by line with the rank before it; pure.

>>> lines = RankLines("stdout", rank=1)
>>> lines.new_lines("loss 0.5\nlos")
'[stdout:1] loss 0.5\n'
>>> lines.new_lines("loss 0.5\nloss 0.4", is_over=True)
'[stdout:1] loss 0.4\n'

IPython Parallel shows the whole text again for every line, which takes quadratic time and memory.
"""

from __future__ import annotations

from typing import final


@final
class RankLines:
    """One stream of one rank."""

    def __init__(self, stream: str, rank: int) -> None:
        self._prefix, self._shown = f"[{stream}:{rank}] ", 0

    def new_lines(self, text: str, is_over: bool = False) -> str:
        """Complete lines of ``text``, the stream so far, that were not shown; the last line, too, if it ``is_over``."""
        end = len(text) if is_over else text.rfind("\n") + 1
        if end <= self._shown:
            return ""
        new, self._shown = text[self._shown : end], end
        return "".join(f"{self._prefix}{line}\n" for line in new.removesuffix("\n").split("\n"))
