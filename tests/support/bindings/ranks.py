"""One rank of a job that runs the contract: ``farandole run -np 2 python ranks.py FOLDER BINDING``.

Writes ``FOLDER/RANK.json``: per case "" or a traceback. The first failure ends the rank.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))  # what lies in tests/

from tests.support.bindings.table import row_of
from workbench.binding.contract import CASES, run_contract


def main(folder: str, name: str) -> int:
    """Run the contract over the binding of that name; 1 if a case failed."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # Keras, of tensors of PyTorch
    binding = row_of(name).make()
    binding.hvd.init()
    rank = binding.rank
    found = {**dict.fromkeys(CASES, "an earlier case failed, so this did not run"), **run_contract(binding)}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    if any(found.values()):
        return 1
    binding.hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
