"""The nccl engine: its own arithmetic and bookkeeping everywhere, all of the contract where there is a GPU."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from farandole.engines.candidates import CANDIDATES
from farandole.testing.engine_contract import CASES, run_contract
from farandole.testing.harness import run_ranks
from farandole.testing.rank import RankContext

pytest.importorskip("torch")

NEEDS_ABORT = {"abort_wakes_waiters", "deadline_ends_a_wait", "close_needs_no_peer_and_leaves_nothing"}
"""Gloo, which stands in for NCCL, does not end what was started."""


def _over_gloo(member: RankContext) -> dict[str, str]:
    import torch
    import torch.distributed as dist

    from farandole.engines.engine import Exchange, Group
    from farandole.engines.nccl.engine import NcclEngine

    def connect(store: Any, group: Group) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=False)]
        return gloo(store, group.rank, group.size, options)

    def create(group: Group, exchange: Exchange) -> NcclEngine:
        return NcclEngine(group, exchange, connect, torch.device("cpu"))

    return run_contract(member, create, {name: case for name, case in CASES.items() if name not in NEEDS_ABORT})


def _over_nccl(member: RankContext) -> dict[str, str]:
    from farandole.engines.nccl.engine import NcclEngine

    return run_contract(member, NcclEngine)


@functools.cache
def _launch(size: int) -> list[dict[str, str]]:
    return run_ranks(_over_gloo, size, timeout_s=200)


@pytest.mark.parametrize("case", [name for name in CASES if name not in NEEDS_ABORT])
@pytest.mark.parametrize("size", [2, 3])
def test_arithmetic_and_bookkeeping(size: int, case: str) -> None:
    found = {f"rank {rank}": wrong[case] for rank, wrong in enumerate(_launch(size)) if wrong[case]}
    assert not found, "\n".join(f"{rank}:\n{text}" for rank, text in found.items())


def test_the_contract_on_one_gpu_with_tensors_of_the_host() -> None:
    if lack := CANDIDATES["nccl"].lack():
        pytest.skip(lack)
    [found] = run_ranks(_over_nccl, 1, timeout_s=200)
    assert not {case: text for case, text in found.items() if text}


def test_tensors_of_the_gpu_stay_there() -> None:
    if lack := CANDIDATES["nccl"].lack():
        pytest.skip(lack)

    def program(member: RankContext) -> list[float]:
        import torch

        from farandole.collective import Array, DType, ReduceOp, Reduction
        from farandole.engines.nccl.engine import NcclEngine

        engine = NcclEngine(member.group(), member.exchange)
        results = []
        for dtype in (torch.float32, torch.bfloat16, torch.int16):
            values = torch.full((1000,), 3, dtype=dtype, device="cuda")
            name = DType.from_name(str(dtype).removeprefix("torch."))
            array = Array(values.data_ptr(), values.numel(), name, values, str(values.device))
            engine.allreduce(array, Reduction(ReduceOp.SUM, prescale=2.0))
            results.append(float(values.float().mean()))
        engine.close()
        return results

    assert run_ranks(program, 1, timeout_s=120) == [[6.0, 6.0, 6.0]]
