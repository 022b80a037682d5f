"""What every rank of one job finds of ``farandole.keras``: ``python on_ranks.py`` prints each case that passed.

The backend of Keras is the one in ``KERAS_BACKEND``. A backend takes seconds to import, so one job runs all cases.
"""

from __future__ import annotations

import sys

import farandole.keras as hvd
from tests.support.keras import (
    callback_cases,
    layer_cases,
    optimizer_cases,
    report_cases,
    state_cases,
    tree_cases,
    virtual_cases,
)
from tests.support.keras.cases import CASES

assert callback_cases
assert layer_cases
assert optimizer_cases
assert report_cases
assert state_cases
assert tree_cases
assert virtual_cases


def main() -> None:
    """One rank."""
    hvd.init(process_sets="dynamic")
    chosen = sys.argv[1:]
    for each in CASES:
        if not chosen or each.__name__ in chosen:
            each()
            if hvd.rank() == 0:
                print(each.__name__, flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
