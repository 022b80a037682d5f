"""The notebook of the examples trains to the bits of ``farandole run``, and its output is that of its ranks."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

from tests.support.launching import Launch, run_to_end
from tests.support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "notebooks" / "px_training.ipynb"
EXECUTE = "from nbclient.cli import main; main()"  # what jupyter execute runs, without the package of that command
CLEAN_UP = re.compile(r"^cluster\.stop_cluster_sync\(\)$", re.MULTILINE)


def cells_of(notebook: dict[str, list[dict[str, list[str] | str]]]) -> list[str]:
    """Sources of the code cells."""
    return ["".join(each["source"]) for each in notebook["cells"] if each["cell_type"] == "code"]


def test_cells_train_to_the_same_bits_as_a_job(tmp_path: Path, launch: Launch) -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    # Engines that have loaded torch ignore SIGTERM: IPython Parallel would wait five seconds for each.
    kill = "import os, signal\nfor seat in ranks.seats:\n    os.kill(seat.report.pid, signal.SIGKILL)\n"
    for cell in notebook["cells"]:
        cell["source"] = CLEAN_UP.sub(f"{kill}cluster.stop_cluster_sync()", "".join(cell["source"]))
    (tmp_path / "px_training.ipynb").write_text(json.dumps(notebook))
    command = [sys.executable, "-W", "default", "-c", EXECUTE, "--inplace", "px_training.ipynb"]
    run_to_end(command, tmp_path, 150.0, {"IPYTHONDIR": str(tmp_path / "ipython")}).ok()
    executed = json.loads((tmp_path / "px_training.ipynb").read_text())
    streams = [o for cell in executed["cells"] for o in cell.get("outputs", []) if o.get("name") == "stdout"]
    text = "".join("".join(output["text"]) for output in streams)
    for rank in range(2):
        assert f"[stdout:{rank}] rank {rank} of 2\n" in text, text
    pictures = [o for cell in executed["cells"] for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    [told] = ["".join(each["data"]["text/plain"]) for each in pictures]
    assert re.fullmatch(r"ended well: step \d+, 2 ranks, .*", told), "it is in the place of the live view"
    weights = re.findall(r"\[stdout:(\d)\] (weights .*)", text)
    script = "\n".join(cell.removeprefix("%%px\n") for cell in cells_of(notebook) if cell.startswith("%%px\n"))
    ast.parse(script)
    [line, other] = [line for line in launch(2, script).ok().lines() if line.startswith("weights")]
    assert sorted(weights) == [("0", line), ("1", other)]
