"""The contract of bindings, over all of ours in one job."""

from __future__ import annotations

from functools import partial

from farandole.testing.binding.contract import CASES
from tests.bindings.under_test import BINDINGS

for _binding in BINDINGS:
    for _name, _case in CASES.items():
        globals()[f"check_{_binding.name}_{_name}"] = partial(_case, _binding)


def check_unnamed_calls_and_handles_of_all_bindings() -> None:
    for op, total in (("Sum", sum(range(BINDINGS[0].size))), ("Max", BINDINGS[0].size - 1)):
        begun = [b.hvd.allreduce_async(b.make([b.rank], "int64"), op=getattr(b.hvd, op)) for b in BINDINGS * 2]
        for b, other, handle in zip(BINDINGS * 2, BINDINGS[::-1] * 2, begun, strict=True):
            assert b.same(other.hvd.synchronize(handle), [total])
