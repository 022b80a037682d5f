"""Process that loads data as it is told, see ``fleet``.

``python -m benchmarks.data_rank LOADER NAME FOLDER [unchecked]``: with the last word it reads nothing before it trains.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.data_loaders import LOADERS, DataSet, Loader
from benchmarks.fleet import connect


def answer(loader: Loader, verb: str, *arguments: float) -> Any:
    """Numbers of the samples of an epoch, samples per second, or the share of the time in which steps compute."""
    if verb == "check":
        return loader.check()
    if verb == "train":
        return computing(loader, *arguments)
    begin = time.perf_counter()
    return loader.run() / (time.perf_counter() - begin)


def computing(loader: Loader, step_s: float) -> float:
    """Share of an epoch in which steps of ``step_s`` compute, from the first batch on."""
    batches = loader.next_epoch()
    next(batches)
    begin, computed_s = time.perf_counter(), 0.0
    for _ in batches:
        step_begin = time.perf_counter()
        time.sleep(step_s)
        computed_s += time.perf_counter() - step_begin
    return computed_s / (time.perf_counter() - begin)


def main() -> None:
    """Answer until told to stop."""
    name, data, folder, *unchecked = sys.argv[1:]
    connection = connect(0)
    loader: Loader | None = None
    while True:
        verb, arguments = connection.recv()
        if verb == "stop":
            break
        try:
            loader = loader or LOADERS[name](DataSet(data, Path(folder)))
            connection.send(("answer", [] if unchecked and verb == "check" else answer(loader, verb, *arguments)))
        except Exception:
            connection.send(("error", traceback.format_exc()))
            break


if __name__ == "__main__":
    main()
