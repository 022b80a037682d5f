"""The contract of bindings over this one, and two bindings in one process."""

from __future__ import annotations

from functools import partial

from tests.support.bindings.numpy_under_test import NumpyUnderTest
from tests.support.bindings.torch_under_test import TorchUnderTest
from workbench.binding.contract import CASES

BINDINGS = (TorchUnderTest(), NumpyUnderTest())

for _name, _case in CASES.items():
    globals()[f"check_{_name}"] = partial(_case, BINDINGS[0])


def check_unnamed_calls_and_handles_of_two_bindings() -> None:
    for op, total in (("Sum", sum(range(BINDINGS[0].size))), ("Max", BINDINGS[0].size - 1)):
        begun = [b.hvd.allreduce_async(b.make([b.rank], "int64"), op=getattr(b.hvd, op)) for b in BINDINGS * 2]
        for b, other, handle in zip(BINDINGS * 2, BINDINGS[::-1] * 2, begun, strict=True):
            assert b.same(other.hvd.synchronize(handle), [total])
