"""PyTorch's own suite for backends of ``torch.distributed``, which is in its wheel, on the backend ``farandole``.

    WORLD_SIZE=2 python -m tests.support.torch.pytorch_suite RESULTS.json [NAME ...]

With ``BACKEND=gloo`` the suite takes our groups for Gloo's, and so tries more: much of it is for Gloo alone. Each test
has processes of its own, forked from this one, which has loaded PyTorch and runs nothing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import unittest
import warnings
from pathlib import Path
from typing import Any, final

os.environ.setdefault("BACKEND", "farandole")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())

import torch
import torch.distributed.distributed_c10d as c10d
from torch.testing._internal import common_distributed

import farandole.torch.distributed.starting  # noqa: F401 (so that no process loads it anew)

common_distributed.TIMEOUT_DEFAULT = 100
for _feature in ("ddp", "subgroup", "gpu", "cuda"):
    common_distributed.DistTestCases.backend_feature[_feature].add("farandole")

from torch.testing._internal.distributed import distributed_test  # noqa: E402 (it looks at the features)

if os.environ["BACKEND"] == "gloo":
    _helper: Any = c10d._new_process_group_helper

    def _ours(size: int, rank: int, ranks: Any, backend: Any, *rest: Any, **named: Any) -> Any:
        return _helper(size, rank, ranks, c10d.Backend("farandole"), *rest, **named)

    c10d._new_process_group_helper = _ours  # type: ignore[assignment]


@final
class OnFarandole(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """The tests of the suite, each with its processes."""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[no-untyped-call]
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


@final
class Results(unittest.TestResult):
    """Outcome of each test: ``ok``, ``skipped`` or ``failed``, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[str, str]] = {}
        self._begin_s = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 (unittest's, as those below)
        super().startTest(test)
        self._begin_s = time.monotonic()

    def _note(self, test: unittest.TestCase, kind: str, why: str = "") -> None:
        name = test.id().rpartition(".")[2]
        self.found.setdefault(name, (kind, why[-3000:]))
        print(f"{kind:8} {name} {time.monotonic() - self._begin_s:.1f} s", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._note(test, "ok")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._note(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._note(test, "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure  # noqa: N815


def main(path: Path, wanted: list[str]) -> None:
    """Run all tests, or those whose names have one of these words in them, and write what came of them."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = Results()
    for name in unittest.TestLoader().getTestCaseNames(OnFarandole):
        if not wanted or any(word in name for word in wanted):
            OnFarandole(name).run(results)  # type: ignore[no-untyped-call]
    path.write_text(json.dumps(results.found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
