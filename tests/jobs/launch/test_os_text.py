"""Folders, arguments, names and exceptions with bytes that are no UTF-8, in whole jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import farandole
from farandole.errors import RemoteError
from tests.support.patience import PATIENCE_S

LATIN = os.fsdecode(b"M\xfcller")

SCRIPT = """
import os, sys
import farandole.numpy as hvd
hvd.init()
hvd.log(**{sys.argv[1]: 1.0})
hvd.log(loss=hvd.allreduce(2.0))
os.write(1, b"%d %s %s\\n" % (hvd.rank(), os.fsencode(sys.argv[1]), os.path.basename(os.getcwdb())))
"""


@pytest.mark.parametrize("options", [[], ["--min-np", "2"]], ids=["static", "elastic"])
def test_a_job_has_its_folder_and_arguments_and_its_record_is_whole(tmp_path: Path, options: list[str]) -> None:
    folder = tmp_path / LATIN
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", *options, "--record", str(folder / "run"), "--csv"]
    done = subprocess.run(
        [*command, sys.executable, "script.py", LATIN], cwd=folder, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = {line.partition(b":")[2] for line in done.stdout.splitlines()}
    assert lines == {b"%d M\xfcller M\xfcller" % rank for rank in range(2)}
    logged = [line.split(",")[5] for line in (folder / "run" / "metrics.csv").read_text().splitlines()[1:]]
    assert sorted(logged) == ["M\\udcfcller"] * 2 + ["loss"] * 2
    assert "M\\udcfcller" in msgspec.json.decode((folder / "run" / "run.json").read_bytes())["command"]


@pytest.mark.parametrize("options", [{}, {"min_np": 1, "reset_limit": 0}], ids=["static", "elastic"])
def test_the_exception_of_a_function_is_raised_again(
    options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise ValueError(LATIN)

    with pytest.raises(RemoteError, match=r"ValueError: M\\udcfcller") as caught:
        farandole.run(fails, np=1, **options)
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.args == (LATIN,)
    capfd.readouterr()
