"""The notebook of the examples that watches and steers: it runs as it is, and keeps its picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.nightly.notebooks.test_px_training import EXECUTE
from tests.support.launching import run_to_end
from tests.support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "notebooks" / "watch_and_steer.ipynb"


def test_it_trains_grows_and_keeps_a_picture(tmp_path: Path) -> None:
    (tmp_path / NOTEBOOK.name).write_text(NOTEBOOK.read_text())
    command = [sys.executable, "-W", "default", "-c", EXECUTE, "--inplace", NOTEBOOK.name]
    run_to_end(command, tmp_path, 150.0, {"IPYTHONDIR": str(tmp_path / "ipython")}).ok()
    cells = {cell["id"]: cell for cell in json.loads((tmp_path / NOTEBOOK.name).read_text())["cells"]}
    said = "".join("".join(output.get("text", "")) for output in cells["result"]["outputs"])
    assert "(3.0, 1.0, 3), (3.0, 1.0, 3), (3.0, 1.0, 3)" in said, said
    [shown] = cells["launch"]["outputs"]
    assert set(shown["data"]) == {"image/png", "text/plain"}
    assert "ended well: step 200, 3 ranks" in "".join(shown["data"]["text/plain"])
