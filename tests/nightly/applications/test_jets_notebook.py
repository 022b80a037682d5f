"""The notebook of the jets trains on engines, and searches, with fewer events."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from tests.support.frameworks import without_compiler
from tests.support.launching import run_to_end
from tests.support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "jets" / "jets.ipynb"
EXECUTE = "from nbclient.cli import main; main()"  # what jupyter execute runs, without the package of that command
SMALLER = {
    'OUT = ROOT / "out"': 'OUT = ROOT.__class__("out").resolve()',
    "events=9000": "events=1800",
    # Engines that have loaded TensorFlow ignore SIGTERM: IPython Parallel would wait five seconds for each.
    "cluster.stop_cluster_sync()": "import signal\n\nfor seat in ranks.seats:\n"
    "    os.kill(seat.report.pid, signal.SIGKILL)\ncluster.stop_cluster_sync()",
}


def test_four_epochs_on_engines_and_a_search(tmp_path: Path) -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        for old, new in SMALLER.items():
            text = text.replace(old, new)
        cell["source"] = text
    (tmp_path / "jets.ipynb").write_text(json.dumps(notebook))
    command = [sys.executable, "-W", "default", "-c", EXECUTE, "--inplace", "jets.ipynb"]
    path = os.pathsep.join(filter(None, (str(ROOT), without_compiler().get("PYTHONPATH", ""))))
    environment = {**without_compiler(), "IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONPATH": path}
    run_to_end(command, tmp_path, 400.0, environment).ok()
    outputs = [o for c in json.loads((tmp_path / "jets.ipynb").read_text())["cells"] for o in c.get("outputs", [])]
    said = "".join("".join(each.get("text", each.get("data", {}).get("text/plain", ""))) for each in outputs)
    for rank in range(2):
        assert f"[stdout:{rank}] rank {rank} of 2: <hdf5: 1200 samples" in said, said
    assert len(re.findall(r"val_accuracy: 0\.\d+", said)) == 4
    accuracy = re.search(r"accuracy (0\.\d+) in test", said)
    assert accuracy, said
    assert float(accuracy[1]) > 0.75
    assert "6/6 trials" in said
    assert re.search(r"\d+ of 24 epochs\n", said)
    assert sum("image/png" in each.get("data", {}) for each in outputs) == 3  # the live view, the curves, the search
