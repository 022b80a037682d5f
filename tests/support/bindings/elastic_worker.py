"""One worker of the elastic job of a binding: ``python elastic_worker.py FOLDER BINDING``.

``BINDING``: a title in ``table.py``, or ``broken``: one whose state lacks what the optimizer keeps of earlier steps,
and that does not have its weights compared, which would tell.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))  # what lies in tests/

from tests.support.bindings.table import row_of
from workbench.binding.elastic_job import train

folder, name = sys.argv[1:]
if name == "broken":
    from tests.support.bindings.broken import BrokenTrainer, forgetful_and_silent

    train(BrokenTrainer(forgetful_and_silent), folder, size=2)
else:
    train(row_of(name).make(), folder, size=2)
