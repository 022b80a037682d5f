"""One rank of the job that runs checks: ``farandole run -np 2 python ranks.py OUTPUT_DIR CHECKS.py ...``.

Writes ``OUTPUT_DIR/rank.json``: per check ``""`` or the traceback. The first failure ends the rank, as the others could
only wait for it; checks that it did not come to say so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

sys.path.append(str(Path(__file__).parents[3]))  # checks share what lies in tests/

from tests.support.loading import loading
from tests.support.not_run import NOT_RUN

with loading():
    import torch

    import farandole.torch as hvd

    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer of a process loads as much again


def load(path: Path) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(f"checks_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def checks_in(path: Path) -> dict[str, Callable[[], None]]:
    """The checks in a file, in order, by ``FILE.NAME``."""
    return {f"{path.stem}.{name}": check for name, check in vars(load(path)).items() if name.startswith("check_")}


def main() -> int:
    """Run all checks, in order; 1 if one failed."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.enable()
    target, *paths = map(Path, sys.argv[1:])
    only = os.environ.get("ONLY_CHECKS", "")
    found: dict[str, str] = {}
    running = "loading"
    hvd.init()
    rank = hvd.rank()
    try:
        checks = {name: check for path in paths for name, check in checks_in(path).items() if only in name}
        found = dict.fromkeys(checks, NOT_RUN)
        for name, check in checks.items():
            running = name
            found[name] = "did not end"
            check()
            found[name] = ""
    except BaseException:
        found[running] = traceback.format_exc()
        return 1
    else:
        hvd.shutdown()
        return 0
    finally:
        (target / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
