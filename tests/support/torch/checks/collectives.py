"""Checks of what the collectives do with PyTorch's tensors alone; the contract of bindings has all the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import farandole.torch as hvd
from tests.support.bindings.torch_under_test import TorchUnderTest
from workbench.binding.refusals import one_rank_cannot


def check_lazily_conjugated_tensors() -> None:
    conjugated = torch.tensor([1 + 2j]).conj()
    assert hvd.allreduce(conjugated).tolist() == [1 - 2j]


def check_that_writing_in_place_is_noticed_by_autograd() -> None:
    weight = torch.ones(3, requires_grad=True)
    saved = torch.ones(3)
    product = (weight * saved).sum()
    hvd.allreduce_(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def check_sparse_allreduce() -> None:
    rank, size = hvd.rank(), hvd.size()
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    every = [torch.sparse_coo_tensor(torch.tensor([[0, r + 1]]), values, (size + 1, 2)) for r in range(size)]
    tensor, dense = every[rank], torch.stack([t.to_dense() for t in every]).sum(0)
    result = hvd.sparse_allreduce_async(tensor, name="sparse", op=hvd.Sum)()
    assert result.is_sparse
    assert torch.equal(result.to_dense(), dense)
    mean = hvd.sparse_allreduce_async(tensor, name="sparse", op=hvd.Average)()
    torch.testing.assert_close(mean.to_dense(), dense / size)


def check_that_layouts_and_devices_nobody_serves_raise_at_once() -> None:
    ones, elsewhere = torch.ones(3), torch.ones(2, device="meta")
    given: list[Any] = [[1.0, 2.0], ones.numpy(), True]
    for wrong, text in (
        (lambda: hvd.allreduce(elsewhere), "cpu tensors"),
        (lambda: hvd.grouped_allreduce([ones, elsewhere]), "cpu tensors"),
        (lambda: hvd.allreduce(ones.to_sparse()), "to_dense"),
        (lambda: hvd.allreduce(given[0]), "a list is no tensor: pass torch.as_tensor"),
        (lambda: hvd.allreduce_(given[1]), "a ndarray is no tensor"),
        (lambda: hvd.grouped_allgather([ones, given[2]]), "a bool is no tensor"),
    ):
        with pytest.raises(ValueError, match=text):
            wrong()
    assert hvd.allreduce(ones).tolist() == [1.0] * 3


def _sparse(dense: torch.Tensor, op: int = hvd.Sum) -> torch.Tensor:
    return hvd.sparse_allreduce_async(dense.to_sparse(), "s", op=op)()


def check_that_what_one_rank_cannot_do_raises_everywhere_and_the_next_call_works() -> None:
    ones, under_test = torch.ones(3), TorchUnderTest()
    for wrong, right, text in (
        (
            lambda: hvd.allreduce_async(ones.to("meta")),
            lambda: hvd.synchronize(hvd.allreduce_async(ones)),
            "cpu tensors",
        ),
        (lambda: _sparse(ones, op=17), lambda: _sparse(ones), "no reduction"),
        (lambda: _sparse(ones, op=hvd.Max), lambda: _sparse(ones), "Sum or Average"),
        (lambda: hvd.sparse_allreduce_async(ones, "s", op=hvd.Sum), lambda: _sparse(ones), "to_sparse"),
    ):
        one_rank_cannot(under_test, wrong, right, text)
