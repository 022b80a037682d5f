"""Which gradients are those that a run has left: told apart from new ones that got the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from farandole.collective import DType
from farandole.engines.engine import Memory
from farandole.gradients.buckets import Bucket, Piece, lay_out
from farandole.torch.compression import Compressor
from farandole.torch.memory import CompressedBucket, GradientBucket, LoneGradient, as_bytes

COUNT = 16
ADDRESS = bytearray(4 * COUNT)
"""Where every gradient of these tests lies."""

MakeBucket = Callable[[torch.nn.Parameter], GradientBucket]


def gradient() -> torch.Tensor:
    """A new one, at the same place as the last."""
    return torch.frombuffer(ADDRESS, dtype=torch.float32)


class Halves(Compressor):
    """A compressor whose results lie there."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor.half(), None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG004 (there is nothing to know)
        return gradient().copy_(tensor)


def layout(dtype: DType, lone_from: float) -> Bucket:
    [bucket] = lay_out([Piece(COUNT, dtype)], 2**20, lone_from).buckets
    return bucket


def lone(param: torch.nn.Parameter) -> GradientBucket:
    return LoneGradient(layout(DType.FLOAT32, 1), [param])


def compressed(param: torch.nn.Parameter) -> GradientBucket:
    room = torch.zeros(2 * COUNT, dtype=torch.uint8)
    memory = Memory(room.data_ptr(), room.numel(), room)
    return CompressedBucket(layout(DType.FLOAT16, float("inf")), [param], as_bytes(memory), memory, Halves)


@pytest.mark.parametrize("make", [lone, compressed])
def test_a_new_gradient_in_the_memory_of_a_reduced_one_is_not_that(make: MakeBucket) -> None:
    param = torch.nn.Parameter(torch.zeros(COUNT))
    bucket = make(param)
    for _ in range(2):
        param.grad = gradient()
        assert not bucket.holds_any()
        bucket.fill()
        bucket.publish([1])
        assert bucket.holds_any()
        param.grad += 1
        assert bucket.holds_any()
        param.grad = None
        assert not bucket.holds_any()
