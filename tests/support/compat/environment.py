"""A virtual environment for one test."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import final

import farandole
from tests.support.patience import PATIENCE_S

PACKAGE = Path(farandole.__file__).parent
DEADLINE_S = 1.66667 * PATIENCE_S
EDITABLE = "_editable_skbc_farandole"


@final
class Env:
    """A virtual environment that finds what this one has, without a ``horovod``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=DEADLINE_S)
        (self.packages,) = folder.glob("lib/python*/site-packages")
        others = [path for path in sys.path if path.endswith("-packages")]
        lines = [str(PACKAGE.parent), *others]
        if importlib.util.find_spec(EDITABLE):  # finds the native core, which is not beside the Python of src/
            lines.append(f"import {EDITABLE}")
        (self.packages / "zz-others.pth").write_text("\n".join(lines))
        self.before = self.files()

    def run(self, *words: str | Path, code: int = 0, variables: Mapping[str, str] | None = None) -> str:
        """What a command of the environment prints."""
        environment = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")} | dict(variables or {})
        done = subprocess.run(
            [self.folder / "bin" / words[0], *words[1:]], capture_output=True, text=True, timeout=DEADLINE_S,
            cwd=self.folder, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def horovod(self, action: str, *options: str, code: int = 0) -> str:
        """What ``farandole horovod ACTION`` prints."""
        return self.run("python", "-m", "farandole", "horovod", action, *options, code=code)

    def files(self) -> set[str]:
        """What lies in it, but for caches."""
        return {str(f) for f in self.folder.rglob("*") if "__pycache__" not in f.parts}
