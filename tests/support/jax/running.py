"""Runner of the checks of a file on the ranks of a job: each takes a rank and the number of ranks."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping

import farandole.jax as hvd


def run_all(names: Mapping[str, object]) -> None:
    """Run all checks among the globals of a file, in their order; the first failure ends the process."""
    hvd.init()
    checks = [
        check
        for check in names.values()
        if callable(check) and getattr(check, "__annotations__", {}).keys() == {"rank", "size", "return"}
    ]
    for check in checks:
        try:
            check(hvd.rank(), hvd.size())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    print(f"{len(checks)} checks passed", flush=True)
    hvd.shutdown()
