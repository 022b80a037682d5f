"""Python loads this first where ``tests.frameworks.lean`` says so: packages in ``TESTS_WITHOUT`` cannot be imported."""

import os
import sys

for _name in os.environ.get("TESTS_WITHOUT", "").split():
    sys.modules[_name] = None  # type: ignore[assignment]  # which import and find_spec take for one that is not there
