"""The notebooks of the applications run from their first cell to their last."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.launching import run_to_end
from tests.support.paths import ROOT

NOTEBOOKS = sorted(
    path for path in (ROOT / "examples").glob("*/*.ipynb") if path.parent.name not in {"notebooks", "jets"}
)
EXECUTE = "from nbclient.cli import main; main()"  # what jupyter execute runs, without the package of that command


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_all_cells_run(notebook: Path, tmp_path: Path) -> None:
    (tmp_path / notebook.name).write_bytes(notebook.read_bytes())
    command = [sys.executable, "-W", "default", "-c", EXECUTE, "--inplace", notebook.name]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    run_to_end(command, tmp_path, 400.0, {"IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONPATH": path}).ok()
    cells = [
        cell for cell in json.loads((tmp_path / notebook.name).read_text())["cells"] if cell["cell_type"] == "code"
    ]
    assert all(cell["execution_count"] for cell in cells)
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])
