"""``farandole check``: complete, readable at 80 columns, and honest about what is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from farandole.launch.tools import check


def test_the_table_reads_well_as_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.report(check.examine()) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for words in ("engines usable here", "frameworks usable here", "launchers usable here", "shm         yes"):
        assert words in text


def test_what_is_missing_comes_with_reason_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    versions = {"keras": "3.1", "mxnet": "1.9.1"}
    findings = check.examine(find=lambda _: None, version_of=lambda package: versions.get(package, ""))
    assert check.report(findings) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "shm no the native core farandole.native.core is not built; install a wheel of farandole" in text
    assert "torch no torch is not installed; type: pip install 'farandole[torch]'" in text
    assert "keras yes Keras 3.1, farandole.keras" in text
    assert "mxnet yes MXNet 1.9.1" in text
    assert "jax" not in text


@pytest.mark.parametrize(
    ("package", "version", "words"),
    [
        ("tensorflow-cpu", "2.21.0", "graphs: native"),
        ("tensorflow", "2.15.1", "graphs: tf.numpy_function.* none of 2.16 to 2.21"),
    ],
)
def test_the_operation_of_tensorflows_graphs_is_told(package: str, version: str, words: str) -> None:
    findings = check.examine(version_of=lambda asked: version if asked == package else "")
    [found] = [each for each in findings if each.name == "tensorflow"]
    assert found.usable
    assert re.search(rf"^TensorFlow {re.escape(version)}, farandole.tensorflow; operation of {words}", found.detail)


def test_json_is_for_programs() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "farandole", "check", "--json"], capture_output=True, text=True, check=True
    )
    report = json.loads(found.stdout)
    assert {"kind": "engine", "name": "solo", "usable": True, "detail": "jobs of one rank", "remedy": ""} in report[
        "findings"
    ]
    assert {f["kind"] for f in report["findings"]} == {"engine", "framework", "launcher"}
