"""The notebook of a search, executed in a kernel."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.support.launching import run_to_end
from tests.support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "notebooks" / "search.ipynb"
EXECUTE = "from nbclient.cli import main; main()"  # what jupyter execute runs, without the package of that command


def test_the_notebook_finds_a_good_network(tmp_path: Path) -> None:
    (tmp_path / "search.ipynb").write_text(NOTEBOOK.read_text())
    command = [sys.executable, "-W", "default", "-c", EXECUTE, "--inplace", "search.ipynb"]
    run_to_end(command, tmp_path, 240.0, {"IPYTHONDIR": str(tmp_path / "ipython")}).ok()
    executed = json.loads((tmp_path / "search.ipynb").read_text())
    outputs = [output for cell in executed["cells"] for output in cell.get("outputs", [])]
    said = "".join("".join(each.get("text", each.get("data", {}).get("text/plain", ""))) for each in outputs)
    assert "9/9 trials" in said
    assert re.search(r"\d+ of 81 epochs\n", said)
    found = re.search(r"'width': (16|32|64)}, ([\d.]+)\)", said)
    assert found, said
    assert float(found[2]) < 0.5
    assert any("image/png" in each.get("data", {}) for each in outputs)
    assert (tmp_path / "runs" / "search" / "trials.log").exists()
