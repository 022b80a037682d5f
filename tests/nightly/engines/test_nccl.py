"""The nccl engine: its own arithmetic and bookkeeping everywhere, all of the contract where there is a GPU."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from farandole.collective import Array, ReduceOp, Reduction
from farandole.engines.candidates import CANDIDATES
from farandole.engines.engine import Engine, Exchange, Group
from farandole.errors import UnsupportedError
from farandole.testing.engine_contract import CASES, run_contract
from farandole.testing.harness import run_ranks
from farandole.testing.rank import RankContext, error_of
from tests.support.patience import PATIENCE_S
from workbench.attacks.arithmetic import CASES as CASES_OF_NUMBERS

pytest.importorskip("torch")

NEEDS_ABORT = {
    "abort_wakes_waiters",
    "an_interrupted_call_is_mixed_with_no_other",
    "deadline_ends_a_wait",
    "close_needs_no_peer_and_leaves_nothing",
}
"""Gloo, which stands in for NCCL, does not end what was started."""
NUMBERS = [case for case in CASES_OF_NUMBERS if case.count <= 1000]


def _make_over_gloo(group: Group, exchange: Exchange) -> Engine:
    import torch
    import torch.distributed as dist

    from farandole.engines.nccl.engine import NcclEngine

    def connect(store: Any, group: Group) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=False)]
        return gloo(store, group.rank, group.size, options)

    return NcclEngine(group, exchange, connect, torch.device("cpu"))


def _over_gloo(member: RankContext) -> dict[str, str]:
    return run_contract(
        member, _make_over_gloo, {name: case for name, case in CASES.items() if name not in NEEDS_ABORT}
    )


def _over_nccl(member: RankContext) -> dict[str, str]:
    from farandole.engines.nccl.engine import NcclEngine

    return run_contract(member, NcclEngine)


@functools.cache
def _launch(size: int) -> list[dict[str, str]]:
    return run_ranks(_over_gloo, size, timeout_s=4 * PATIENCE_S)


@pytest.mark.parametrize("case", [name for name in CASES if name not in NEEDS_ABORT])
@pytest.mark.parametrize("size", [2, 3])
def test_arithmetic_and_bookkeeping(size: int, case: str) -> None:
    found = {f"rank {rank}": wrong[case] for rank, wrong in enumerate(_launch(size)) if wrong[case]}
    assert not found, "\n".join(f"{rank}:\n{text}" for rank, text in found.items())


def _attack_over_gloo(member: RankContext) -> list[str]:
    engine, wrong = _make_over_gloo(member.group(deadline_s=120.0), member.exchange), []
    for case in NUMBERS:
        said = [case.contribution(rank, member.size) for rank in range(member.size)]
        found = said[member.rank].copy()
        engine.allreduce(Array(found.ctypes.data, found.size, case.dtype, found), Reduction(case.op))
        text = case.wrong(found, said, hosts=1)
        wrong += [f"{case.name}: {text}"] if text else []
    engine.close()
    return wrong


def test_not_a_number_infinities_signed_zeros_and_the_limits_of_integers() -> None:
    assert run_ranks(_attack_over_gloo, 3, timeout_s=4 * PATIENCE_S) == [[], [], []]


def test_who_is_interrupted_between_two_transfers_takes_part_in_nothing_more() -> None:
    def program(member: RankContext) -> list[str]:
        from farandole.testing.interruption import TELLING_CALLS, Interruption, interrupted_at, points_of

        said = []
        for name, call in TELLING_CALLS.items():
            engine = _make_over_gloo(member.group(name), member.exchange_among(name))
            points = points_of(engine, lambda call=call, engine=engine: call(engine, 1))  # type: ignore[misc]
            with pytest.raises(Interruption), interrupted_at(engine, points[-1]):
                call(engine, 2)
            said.append(error_of(lambda call=call, engine=engine: call(engine, 3)))  # type: ignore[misc]
            engine.close()
        return said

    [found] = run_ranks(program, 1)
    assert found
    for text in found:
        assert text.startswith("EngineError: a collective of ")
        assert " was interrupted by Interruption" in text


def test_an_operation_that_it_does_not_know_is_no_sum() -> None:
    import torch

    from farandole.engines.nccl.tensors import combine

    for dtype in (torch.float32, torch.int32, torch.bool):
        ones = torch.ones(2, dtype=dtype)
        with pytest.raises(UnsupportedError, match="Adasum is no operation of the engine nccl"):
            combine(ones, ones, ReduceOp.ADASUM)


def test_the_contract_on_one_gpu_with_tensors_of_the_host() -> None:
    if lack := CANDIDATES["nccl"].lack():
        pytest.skip(lack)
    [found] = run_ranks(_over_nccl, 1, timeout_s=4 * PATIENCE_S)
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

    assert run_ranks(program, 1, timeout_s=2 * PATIENCE_S) == [[6.0, 6.0, 6.0]]
