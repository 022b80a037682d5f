"""Where reduced gradients are written, and which ones a run has left: told apart from new ones in the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from farandole.adapters.torch_targets import GradientSpec, Targets, code_of, overlap
from farandole.adapters.torch_tensors import tensors
from farandole.collective import DType
from farandole.engines.engine import Memory
from farandole.gradients.agreement import Agreed
from farandole.gradients.buckets import Bucket, Piece, lay_out
from farandole.gradients.parameters import ReleasedGradients
from farandole.torch.compression import Compressor
from farandole.torch.memory import CompressedBucket, DirectBucket, LoneGradient, TorchBucket

COUNT = 16
ADDRESS = bytearray(4 * COUNT)
"""Where every gradient of ``gradient`` lies."""


def gradient() -> torch.Tensor:
    """A new one, at the same place as the last."""
    return torch.frombuffer(ADDRESS, dtype=torch.float32)


def test_a_rank_without_a_sparse_gradient_gives_none_on_the_device_of_the_others() -> None:
    spec = GradientSpec.of(torch.empty(6, 2, device="meta"))
    empty = spec.sparse(None, 1)
    assert (empty.device.type, empty.indices().device.type, empty.values().device.type) == ("meta",) * 3
    assert (empty.shape, empty.values().shape) == ((6, 2), (0, 2))


class Nothing(Compressor):
    """A compressor that gives back what it got."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG004 (there is nothing to know)
        return tensor


def layout(lone_from: float) -> Bucket:
    [bucket] = lay_out([Piece(COUNT, DType.FLOAT32)], 2**20, lone_from).buckets
    return bucket


def lone(param: torch.nn.Parameter) -> TorchBucket:
    return LoneGradient(layout(1), [param], [GradientSpec.of(param)])


def engine_memory() -> Memory:
    room = torch.zeros(4 * COUNT, dtype=torch.uint8)
    return Memory(room.data_ptr(), room.numel(), room)


def direct(param: torch.nn.Parameter) -> TorchBucket:
    return DirectBucket(layout(float("inf")), [param], [GradientSpec.of(param)], engine_memory())


def compressed(param: torch.nn.Parameter) -> TorchBucket:
    specs = [GradientSpec.of(param)]
    return CompressedBucket(layout(float("inf")), [param], specs, engine_memory(), Nothing)


@pytest.mark.parametrize("make", [lone, direct, compressed])
@pytest.mark.parametrize("is_there", [True, False])
def test_no_gradient_is_a_part_of_engine_memory(
    make: Callable[[torch.nn.Parameter], TorchBucket], is_there: bool
) -> None:
    param = torch.nn.Parameter(torch.zeros(COUNT))
    bucket = make(param)
    kept = []
    for turn in range(3):
        param.grad = torch.full((COUNT,), float(turn)) if is_there else None
        target = param.grad
        bucket.fill_alone()
        bucket.weigh(2.0)
        bucket.publish(Agreed([code_of(param, torch.zeros(COUNT))]))
        assert param.grad is not None
        assert target is None or param.grad is target
        kept.append(param.grad)
    assert [grad.tolist() for grad in kept] == [[2.0 * turn * is_there] * COUNT for turn in range(3)]


def test_a_new_gradient_in_the_memory_of_a_reduced_one_is_not_that() -> None:
    param = torch.nn.Parameter(torch.zeros(COUNT))
    left = ReleasedGradients(tensors)
    for _ in range(2):
        param.grad = gradient()
        assert not left.any_of([param])
        left.note([param])
        assert left.any_of([param])
        param.grad += 1
        assert left.any_of([param])
        param.grad = None
        assert not left.any_of([param])


BASE = torch.zeros(64)
ORDINARY = [BASE[:16], BASE[16:32]]
KEPT: dict[str, tuple[list[torch.Tensor], list[bool]]] = {
    "apart": (ORDINARY, [True, True]),
    "the same": ([BASE[:16], BASE[:16]], [True, False]),
    "overlapping": ([BASE[8:24], BASE[:16]], [False, True]),
    "interleaved": ([BASE[:32:2], BASE[32:48]], [True, True]),
    "expanded": ([BASE[:1].expand(16), BASE[32:48]], [False, True]),
    "folded": ([BASE.as_strided((4, 4), (1, 1)).t(), BASE[32:48]], [False, True]),
    "with a graph": ([torch.zeros(16, requires_grad=True), BASE[:16]], [False, True]),
    "sparse": ([torch.zeros(16).to_sparse(), BASE[:16]], [False, True]),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_may_be_written_over(case: str) -> None:
    gradients, expected = KEPT[case]
    specs = [GradientSpec(torch.Size([16]), (1,), torch.float32, torch.device("cpu"))] * 2
    found = Targets(specs).of(gradients)
    assert [target is not None for target in found] == expected
    assert all(target is None or target is grad for target, grad in zip(found, gradients, strict=True))


def test_memory_that_overlaps() -> None:
    assert not overlap([None, *ORDINARY])
    assert not overlap([torch.zeros(0), torch.zeros(0), BASE[:16], BASE[16:]])
    assert overlap([BASE[:16], None, BASE[:16]])
    assert overlap([BASE[8:], BASE[:16]])
    assert overlap([BASE[:1].expand(4)])
