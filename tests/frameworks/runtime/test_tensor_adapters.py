"""What every framework's adapter makes of its tensors, and what ``Leaves`` makes of trees of them."""

from __future__ import annotations

import ctypes
import gc
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from farandole.adapters.numpy import NumpyAdapter
from farandole.adapters.numpy_tensors import NumpyTensors
from farandole.adapters.torch import TorchAdapter
from farandole.adapters.torch_tensors import TorchTensors
from farandole.collective import Array, DType
from farandole.gradients.tensors import Tensors
from farandole.runtime.collectives.adapter import TensorAdapter, TensorSpec
from farandole.runtime.collectives.leaves import Leaves
from tests.support.patience import PATIENCE_S

FRAMEWORKS = [(NumpyAdapter(), np.asarray), (TorchAdapter(), torch.tensor)]
each = pytest.mark.parametrize(("adapter", "make"), FRAMEWORKS, ids=["numpy", "torch"])
Make = Callable[[Any], Any]
Adapted = TensorAdapter[Any]


class Pair(NamedTuple):
    """As trees may have them."""

    left: Any
    right: Any


def content(array: Array) -> bytes:
    """The bytes that lie there."""
    return ctypes.string_at(array.address, array.nbytes)


@each
def test_a_spec_makes_another_one_that_fits(adapter: Adapted, make: Make) -> None:
    whole = make([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    for tensor in (whole, whole.T, whole[:, 1], whole[:1, ::2], whole[0, 0:1].reshape(()), whole[:0]):
        spec = adapter.spec(tensor)
        assert spec.shape == tuple(tensor.shape)
        assert adapter.spec(adapter.make(spec)) == spec
        for elsewhere in (spec.portable, spec.packed):
            there = adapter.make(elsewhere)
            adapter.assign(there, tensor)
            assert there.tolist() == tensor.tolist()
        assert spec.portable.strides is None
        assert spec.packed.strides == ((1, 3) if tensor.shape == (3, 2) else None)
        assert spec.nbytes == adapter.host_bytes(tensor).nbytes
    assert adapter.spec(whole.T).strides == (1, 3)


@each
def test_a_spec_can_be_read_where_the_framework_is_not(adapter: Adapted, make: Make) -> None:
    spec = pickle.dumps(adapter.spec(make([[1, 2, 3]])).portable)
    code = f"import pickle, sys; print(pickle.loads({spec!r})); sys.exit(bool({{'torch', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == repr(TensorSpec((1, 3), "int64", 8))


@each
def test_values_lie_in_host_memory_as_they_are_or_as_a_copy(adapter: Adapted, make: Make) -> None:
    whole = make([[1, 2], [3, 4]])
    lies, copied = adapter.host_bytes(whole), adapter.host_bytes(whole.T)
    assert lies.owner is whole
    assert copied.owner is not whole
    for array, values in ((lies, [1, 2, 3, 4]), (copied, [1, 3, 2, 4])):
        assert array.dtype is DType.UINT8
        assert content(array) == np.array(values).tobytes()
    kept = adapter.host_copy(whole[:, 1])
    whole[:] = 0
    assert kept.tolist() == [2, 4]


@each
def test_a_view_is_the_memory_and_keeps_it(adapter: Adapted, make: Make) -> None:
    source = make([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    memory, spec = adapter.array(source), adapter.spec(source)
    view = adapter.view(memory, spec)
    turned = adapter.view(memory, TensorSpec((3, 2), spec.dtype, spec.itemsize, (1, 3)))
    assert view is not None
    assert turned is not None
    view[0, 1] = 7.0
    assert source[0, 1] == turned[1, 0] == 7.0
    del source, memory
    gc.collect()
    assert view.tolist() == [[1.0, 7.0, 3.0], [4.0, 5.0, 6.0]]
    assert adapter.view(Array(0, 6, DType.FLOAT32, device="cuda:0"), spec) is None


@each
def test_leaves_are_taken_out_put_back_and_written(adapter: Adapted, make: Make) -> None:
    leaves = Leaves(adapter)
    tree = {"a": [make([1, 2]), 3], "b": (make([[4.0], [5.0]]).T, "text"), "c": Pair(make([6]), None)}
    skeleton, tensors = leaves.flatten(tree)
    assert [tensor.tolist() for tensor in tensors] == [[1, 2], [[4.0, 5.0]], [6]]
    assert skeleton["c"] == Pair(TensorSpec((1,), "int64", 8), None)
    own = make([0, 0])  # fits the first leaf
    other, used = leaves.put(pickle.loads(pickle.dumps(skeleton)), [own, make([0, 0, 0])])
    assert used[0] is other["a"][0] is own
    memory, sources = leaves.memory(used), leaves.memory(tensors)
    for target, source in zip(memory, sources, strict=True):
        ctypes.memmove(target.address, source.address, source.nbytes)
    leaves.written(used, memory)
    assert (own.tolist(), other["b"][0].tolist(), other["b"][1], other["c"].left.tolist()) == (
        [1, 2],
        [[4.0, 5.0]],
        "text",
        [6],
    )


@each
def test_what_does_not_lie_right_gets_its_values_from_the_copy(adapter: Adapted, make: Make) -> None:
    leaves, whole = Leaves(adapter), make([[1, 2], [3, 4]])
    memory = leaves.memory([whole.T])
    ctypes.memset(memory[0].address, 0, memory[0].nbytes)
    leaves.written([whole.T], memory)
    assert whole.tolist() == [[0, 0], [0, 0]]


def test_types_that_no_engine_reduces_are_kept_as_well() -> None:
    for array in (np.array(["2026-01-01"], "M8[D]"), np.array([1.0], ">f4"), np.array([b"ab"]), np.zeros(2, "f2")):
        adapter = NumpyAdapter()
        assert adapter.is_tensor(array)
        assert adapter.make(adapter.spec(array)).dtype == array.dtype
    other: tuple[Any, ...] = (np.array([None]), np.zeros(1, [("a", "i4")]), np.ma.array([1]), np.float64(1), 1, None)
    assert not any(map(NumpyAdapter().is_tensor, other))
    eighth = torch.tensor([1.5]).to(torch.float8_e4m3fn)
    assert TorchAdapter().make(TorchAdapter().spec(eighth)).dtype is torch.float8_e4m3fn


def test_without_an_adapter_nothing_is_a_tensor() -> None:
    tree = {"a": np.zeros(3), "b": torch.zeros(2)}
    assert Leaves[Any]().flatten(tree) == (tree, [])
    assert Leaves[Any]().put(tree, []) == (tree, [])


def test_memory_that_may_not_be_written_is_not_lent() -> None:
    adapter, constant = NumpyAdapter(), np.frombuffer(b"abcd", np.uint8)
    assert adapter.host_bytes(constant).owner is not constant
    with pytest.raises(ValueError, match="read-only"):
        adapter.assign(constant, np.zeros(4, np.uint8))


def test_digests_tell_the_values_whatever_framework_and_layout() -> None:
    values = [[1.0, 2.0], [3.0, 4.0]]
    array, tensor = np.array(values), torch.tensor(values, dtype=torch.float64, requires_grad=True)
    kinds: list[tuple[Tensors[Any], Any]] = [(NumpyTensors(), array), (TorchTensors(), tensor)]
    digests = [tensors.digests([given, given.T, None]) for tensors, given in kinds]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 3
    for tensors, given in kinds:
        assert tensors.digests([given.T]) == tensors.digests([tensors.clone(given.T), None])[:1]
    number = torch.tensor([1 + 2j])
    assert TorchTensors().digests([number.conj()]) == NumpyTensors().digests([np.array([1 - 2j], np.complex64)])


def test_sparse_tensors_have_the_digest_of_none() -> None:
    sparse, none = TorchTensors().digests([torch.eye(2).to_sparse(), None])
    assert sparse == none


def test_lazily_conjugated_values_are_those_that_one_sees() -> None:
    adapter, number = TorchAdapter(), torch.tensor([1 + 2j])
    assert content(adapter.host_bytes(number.conj())) == np.array([1 - 2j], np.complex64).tobytes()
