"""One rank of a fleet of one framework (``python -m benchmarks.frameworks.rank MODULE``): measures what it is told."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from multiprocessing.connection import Connection

from benchmarks.fleet import RANK, connect
from benchmarks.frameworks.runs import Runs


def obey(connection: Connection, module: str) -> None:
    """Answer until told to stop, or until something fails; the module with the framework is imported when asked."""
    runs: Runs = {}
    while True:
        verb, arguments = connection.recv()
        if verb == "stop":
            return
        try:
            if verb == "check":
                runs = importlib.import_module(f"benchmarks.frameworks.{module}").runs()
                answer: object = list(runs)
            else:
                key, times = arguments
                answer = runs[tuple(key)](times)
        except Exception:
            connection.send(("error", traceback.format_exc()))
            return
        connection.send(("answer", answer))


if __name__ == "__main__":
    place = int(os.environ.get(RANK) or os.environ["FARANDOLE_RANK"])
    obey(connect(place), sys.argv[1])
