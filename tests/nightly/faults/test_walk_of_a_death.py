"""The walk of a death: not in the gate, as whoever hears of the death first goes another way."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks.test_walks import follow
from tests.support.launching import Launch


def test_files_of_a_death_are_called_in_its_order(launch: Launch, tmp_path: Path) -> None:
    follow("death", launch, tmp_path)
