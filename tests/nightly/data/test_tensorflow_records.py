"""TensorFlow's own writer and parser are the oracle of ``tfrecord``, in a process of their own."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.frameworks import lean, skip_without
from tests.support.launching import run_to_end

skip_without("tensorflow")


def test_tensorflow_and_we_read_and_write_alike(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.data.tensorflow_oracle", str(tmp_path)]
    run_to_end(command, tmp_path, 120, lean("tensorflow")).ok()
