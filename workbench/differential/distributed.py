"""Generated programs of PyTorch's DDP and FSDP2 on our backend, compared with one process on the joined batch.

    farandole run -np 2 python -m workbench.differential.distributed --programs 200 --seed 1
    farandole run -np 2 python -m workbench.differential.distributed --seed 4711        # one of them again

One job runs all programs: each rank draws the same plans, and trains on its part of each batch. The oracle is plain
PyTorch on all parts at once, in float64, so that the order of sums is below the tolerance.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

WIDTHS = (1, 2, 3, 5, 8, 13)
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05),
}


@final
@dataclass(frozen=True)
class WrappedPlan:
    """One program. ``wrapped``: layers that FSDP2 shards by themselves; ``idle``: a layer may be left out in a step."""

    seed: int
    kind: str
    widths: tuple[int, ...]
    wrapped: tuple[bool, ...]
    frozen: tuple[bool, ...]
    reshards: bool
    has_normalization: bool
    idle: bool
    bucket_mb: float
    views: bool
    optimizer: str
    clip: float
    passes: int
    steps: int
    rows: int
    own_group: bool

    @staticmethod
    def drawn(seed: int) -> WrappedPlan:
        """The plan of a seed, the same everywhere.

        >>> WrappedPlan.drawn(3) == WrappedPlan.drawn(3)
        True
        """
        dice = random.Random(seed)  # noqa: S311 (of tests)
        widths = tuple(dice.choice(WIDTHS) for _ in range(dice.randint(2, 5)))
        kind = dice.choice(["ddp", "fsdp2"])
        return WrappedPlan(
            seed=seed,
            kind=kind,
            widths=widths,
            wrapped=tuple(dice.random() < 0.6 for _ in widths),
            frozen=tuple(kind == "ddp" and dice.random() < 0.15 for _ in widths[2:]),
            reshards=dice.random() < 0.5,
            has_normalization=dice.random() < 0.5 and widths[-1] > 2,  # fewer have next to no gradient
            idle=kind == "ddp" and dice.random() < 0.3,
            bucket_mb=dice.choice([1e-5, 1e-4, 1.0, 25.0]),
            views=dice.random() < 0.5,
            optimizer=dice.choice(sorted(OPTIMIZERS)),
            clip=dice.choice([0.0, 0.1, 1.0]),
            passes=dice.choice([1, 1, 2, 3]),
            steps=dice.randint(1, 4),
            rows=dice.randint(1, 4),
            own_group=dice.random() < 0.3,
        )


class PlannedNetwork(torch.nn.Module):
    """Layers of the widths of a plan; an extra layer takes part in every other step."""

    def __init__(self, plan: WrappedPlan) -> None:
        super().__init__()
        torch.manual_seed(plan.seed)
        pairs = list(zip(plan.widths, plan.widths[1:], strict=False))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair, dtype=torch.float64) for pair in pairs)
        last = plan.widths[-1]
        self.norm = torch.nn.LayerNorm(last, dtype=torch.float64) if plan.has_normalization else torch.nn.Identity()
        self.more = torch.nn.Linear(last, 1, dtype=torch.float64) if plan.idle else None
        for layer, is_frozen in zip(list(self.layers)[1:], plan.frozen, strict=False):
            layer.weight.requires_grad_(not is_frozen)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        """A number for each row."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        x = self.norm(x)
        rows: torch.Tensor = (x * torch.arange(1, x.shape[1] + 1)).sum(1).square()
        return rows + self.more(x)[:, 0] if self.more is not None and step % 2 else rows


def batch(plan: WrappedPlan, step: int, number: int, rank: int) -> torch.Tensor:
    """The rows of a rank in one pass of a step."""
    generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + 1009 * step + 101 * number + rank)
    return torch.randn(plan.rows, plan.widths[0], generator=generator, dtype=torch.float64)


def expected(plan: WrappedPlan, ranks: int) -> dict[str, torch.Tensor]:
    """The parameters of one process that trains on all rows."""
    model = PlannedNetwork(plan)
    optimizer = OPTIMIZERS[plan.optimizer](model.parameters())
    for step in range(plan.steps):
        optimizer.zero_grad()
        for number in range(plan.passes):
            rows = torch.cat([batch(plan, step, number, rank) for rank in range(ranks)])
            model(rows, step).mean().backward()
        if plan.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
    return {name: param.detach() for name, param in model.named_parameters()}


def wrapped(plan: WrappedPlan, group: Any) -> tuple[torch.nn.Module, Any]:
    """The network, and the wrapper that is called in its place."""
    model = PlannedNetwork(plan)
    if plan.kind == "ddp":
        options: dict[str, Any] = {"bucket_cap_mb": plan.bucket_mb, "gradient_as_bucket_view": plan.views}
        return model, DistributedDataParallel(model, process_group=group, find_unused_parameters=plan.idle, **options)
    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu")
    for layer, is_wrapped in zip(model.layers, plan.wrapped, strict=False):
        if is_wrapped:
            fully_shard(layer, mesh=mesh, reshard_after_forward=plan.reshards)
    return model, fully_shard(model, mesh=mesh, reshard_after_forward=plan.reshards)


@contextlib.contextmanager
def summing(plan: WrappedPlan, called: Any, is_last: bool) -> Iterator[None]:
    """Context of one pass of an accumulation: gradients are reduced in the last pass."""
    if plan.kind == "fsdp2":
        called.set_requires_gradient_sync(is_last)
        yield
    else:
        with contextlib.nullcontext() if is_last else called.no_sync():
            yield


def trained(plan: WrappedPlan, group: Any) -> dict[str, torch.Tensor]:
    """The whole parameters after the program, on any rank."""
    model, called = wrapped(plan, group)
    optimizer = OPTIMIZERS[plan.optimizer](model.parameters())
    for step in range(plan.steps):
        optimizer.zero_grad()
        for number in range(plan.passes):
            with summing(plan, called, number == plan.passes - 1):
                called(batch(plan, step, number, dist.get_rank()), step).mean().backward()
        if plan.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
    return {
        name: (param.full_tensor() if isinstance(param, DTensor) else param).detach()
        for name, param in model.named_parameters()
    }


def fault(plan: WrappedPlan, group: Any) -> str:
    """Return the error of a program; "" for none."""
    found, right = trained(plan, group), expected(plan, dist.get_world_size())
    for name, values in right.items():
        if not torch.allclose(found[name], values, rtol=1e-7, atol=1e-9):
            return f"{name} is off by {(found[name] - values).abs().max().item():.3g}: {plan}"
    return ""


def main() -> int:
    """Command line of one rank; the exit status is 1 if a program was wrong."""
    parser = argparse.ArgumentParser(prog="python -m workbench.differential.distributed", description=__doc__)
    parser.add_argument("--programs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1, help="of the first program; the next have the next seeds")
    parser.add_argument("--backend", default="farandole")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(chosen.backend)
    own, wrong, kinds = dist.new_group(), 0, {"ddp": 0, "fsdp2": 0}
    for seed in range(chosen.seed, chosen.seed + chosen.programs):
        plan = WrappedPlan.drawn(seed)
        kinds[plan.kind] += 1
        if said := fault(plan, own if plan.own_group else dist.group.WORLD):
            wrong += 1
            print(f"seed {seed}: {said}", flush=True)
    if dist.get_rank() == 0:
        told = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
        print(f"{chosen.programs} programs on {dist.get_world_size()} ranks ({told}): {wrong} wrong", flush=True)
    dist.destroy_process_group()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
