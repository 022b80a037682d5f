"""The contract of bindings, over all of ours in one job."""

from __future__ import annotations

from functools import partial

from farandole.testing.binding.contract import CASES
from tests.bindings.under_test import BINDINGS

for _binding in BINDINGS:
    for _name, _case in CASES.items():
        globals()[f"check_{_binding.name}_{_name}"] = partial(_case, _binding)
