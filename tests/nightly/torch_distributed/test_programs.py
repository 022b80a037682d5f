"""Generated programs of DDP and FSDP2: weights are those of one process on the joined batch, and a defect is found."""

from __future__ import annotations

import pytest

from tests.support.frameworks import lean
from tests.support.launching import Launch

ENVIRONMENT = {**lean("torch"), "OMP_NUM_THREADS": "1"}
SCRIPT = """
    import sys
    from workbench.differential.distributed import main
    {defect}
    sys.exit(main())
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_weights_are_those_of_one_process(launch: Launch, ranks: int) -> None:
    arguments = ["--programs", "200", "--seed", "1"]
    done = launch(ranks, SCRIPT.format(defect=""), arguments=arguments, environment=ENVIRONMENT).ok()
    assert any(f"200 programs on {ranks} ranks" in line and line.endswith(": 0 wrong") for line in done.lines())


def test_a_defect_is_found(launch: Launch) -> None:
    defect = "from farandole.torch.distributed import tensors as t; t._OPS[t.KINDS.SUM] = t.ReduceOp.MAX"
    arguments = ["--programs", "20", "--seed", "1"]
    done = launch(2, SCRIPT.format(defect=defect), arguments=arguments, environment=ENVIRONMENT)
    assert done.code == 1
    assert "is off by" in done.stdout
