"""Advice that the last lines of a worker call for. Pure.

>>> advice("ModuleNotFoundError: No module named 'horovod'", horovod=False).partition(":")[0]
'its script imports horovod'
"""

from __future__ import annotations

import re

_NO_HOROVOD = re.compile(r"^\s*ModuleNotFoundError: No module named 'horovod'", re.MULTILINE)


def advice(tail: str, horovod: bool) -> str:
    """Advice after the end of a worker whose standard error ended with ``tail``; "" if there is nothing to say.

    ``horovod`` is the setting of the job.
    """
    if not _NO_HOROVOD.search(tail):
        return ""
    if horovod:
        return (
            "its script imports horovod, and neither PYTHONPATH nor FARANDOLE_HOROVOD has reached it: "
            "type once, with the same Python: farandole horovod install"
        )
    return (
        "its script imports horovod: add --horovod (farandole run --horovod ...), "
        "or type once: farandole horovod install"
    )
