"""Checks of ``broadcast_parameters`` where ranks do not agree."""

from __future__ import annotations

import pytest
import torch

import farandole.torch as hvd
from farandole.errors import MismatchError


def check_that_a_failed_broadcast_leaves_its_names_free() -> None:
    if hvd.size() == 1:
        return
    for odd in ("a", "b", "d"):
        tensors = {name: torch.full((3,), float(hvd.rank())) for name in "abcd"}
        tensors[odd] = torch.zeros(3 + hvd.rank() % 2)
        for _ in range(20):
            with pytest.raises(MismatchError, match=f"parameter.{odd}"):
                hvd.broadcast_parameters(tensors, root_rank=0)
        tensors = {name: torch.full((3,), float(hvd.rank())) for name in "abcd"}
        hvd.broadcast_parameters(tensors, root_rank=1)
        assert all(tensor.tolist() == [1.0] * 3 for tensor in tensors.values())


def check_that_names_of_one_rank_alone_are_not_waited_for() -> None:
    if hvd.size() == 1:
        return
    tensors = {"x": torch.zeros(3 + hvd.rank() % 2), "y": torch.zeros(2)}
    if hvd.rank() == 0:
        tensors["z"] = torch.zeros(2)
    with pytest.raises(MismatchError, match=r"parameter\.x"):
        hvd.broadcast_parameters(tensors, root_rank=0)
    if hvd.rank() > 0:  # now they come, too
        tensors["z"] = torch.zeros(2)
        hvd.broadcast_(tensors["z"], 0, "parameter.z")


def check_that_a_tensor_one_rank_cannot_send_fails_everywhere() -> None:
    if hvd.size() == 1:
        return
    for _ in range(3):
        tensors = [torch.zeros(2), torch.zeros(3), torch.zeros(4)]
        if hvd.rank() == 0:
            tensors[1] = torch.zeros(3, dtype=torch.float8_e4m3fn)
        with pytest.raises(ValueError, match=r"number1|float8"):
            hvd.broadcast_parameters(tensors, root_rank=0)
