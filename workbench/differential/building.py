"""Vocabulary for the beginning of a program: models, optimizers, and how they are distributed."""

from __future__ import annotations

from workbench.differential.draft import Draft, Pair

OPTIMIZERS = {
    "sgd": "torch.optim.SGD({params}, lr=0.1)",
    "momentum": "torch.optim.SGD({params}, lr=0.05, momentum=0.9)",
    "adam": "torch.optim.Adam({params}, lr=0.01, eps=1e-3)",
    "foreach": "torch.optim.AdamW({params}, lr=0.01, eps=1e-3, foreach=True)",
    "fused": "torch.optim.SGD({params}, lr=0.1, fused=True)",
    "lbfgs": "torch.optim.LBFGS({params}, lr=0.1, max_iter=3)",
}
KINDS = {"linear": 6, "square": 3, "tied": 2, "conv": 3, "embedding": 2, "large": 1, "scalars": 2}


def build(draft: Draft) -> None:
    """One or two models with their optimizers, made in the same order on every rank or not."""
    draft.settings = settings(draft)
    number = 2 if draft.chance(0.35, "two models") else 1
    for i in range(number):
        draft.pairs.append(model(draft, i))
    makers = [optimizer(draft, pair, distinct=number > 1) for pair in draft.pairs]
    if number == 2 and all(p.named for p in draft.pairs) and draft.chance(0.5, "order of optimizers"):
        calls = ", ".join(f"lambda: {maker}" for maker in makers)
        line = f"o0, o1 = call_in_order({calls}, backwards=rank == 1)"
        draft.add("order of optimizers", line, may_refuse=True)
    else:
        for pair, maker in zip(draft.pairs, makers, strict=True):
            draft.add("optimizer", f"{pair.o} = {maker}")
    draft.pair = draft.pairs[0]


def settings(draft: Draft) -> dict[str, int | str]:
    """Knobs: buckets from smaller than a bias to larger than all, and when they are reduced."""
    found: dict[str, int | str] = {}
    if draft.chance(0.5):
        found["bucket_bytes"] = draft.choose(1, 16, 40, 64, 100, 200, 2**20, 2**21)
    if draft.chance(0.35, "overlap"):
        found["overlap"] = "backward"
    elif draft.chance(0.5):
        found["overlap"] = "step"
    return found


def model(draft: Draft, i: int) -> Pair:
    """A network, with the same weights on every rank or broadcast from one rank."""
    kinds = [kind for kind in KINDS if kind not in draft.without]
    [kind] = draft.rng.choices(kinds, [KINDS[kind] for kind in kinds])
    pair, seed = Pair(i, kind), draft.number()
    if draft.chance(0.3, "broadcast"):
        root = draft.choose("0", "size - 1")
        draft.add(kind, f"{pair.m} = Net({kind!r}, seed={seed * 10} + rank)")
        draft.add("broadcast", f"hvd.broadcast_parameters({pair.m}.state_dict(), root_rank={root})")
    else:
        draft.add(kind, f"{pair.m} = Net({kind!r}, seed={seed})")
    if kind != "embedding" and draft.chance(0.08, "half weights"):
        pair.dtype = "bfloat16"
        draft.add("half weights", f"{pair.m}.bfloat16()")
    elif draft.chance(0.08, "double"):
        pair.dtype = "float64"
        draft.add("double", f"{pair.m}.double()")
    if draft.chance(0.06, "channels_last") and kind == "conv":
        draft.add("channels_last", f"{pair.m}.to(memory_format=torch.channels_last)")
    return pair


def optimizer(draft: Draft, pair: Pair, distinct: bool) -> str:
    """The text that makes a distributed optimizer."""
    pair.how = "sgd" if pair.kind == "embedding" else draft.rng.choices(list(OPTIMIZERS), [6, 4, 3, 2, 1, 1])[0]
    if pair.how in draft.without:
        pair.how = "sgd"
    params, arguments = f"{pair.m}.parameters()", []
    pair.named = distinct or draft.chance(0.6)
    prefix = f"{pair.m}." if distinct else ""
    named = f"{pair.m}.named_parameters(prefix={prefix[:-1]!r})" if prefix else f"{pair.m}.named_parameters()"
    if pair.named and draft.chance(0.1, "order of parameters"):
        pair.reordered = True
        params = f"list({pair.m}.parameters())[:: -1 if rank == 1 else 1]"
        draft.add("order of parameters", f"order{pair.number} = {params}", may_refuse=True)
        params = f"order{pair.number}"
    if pair.named and draft.chance(0.2):
        named = f"list({named})[:: -1 if rank == 1 else 1]"
    if pair.named:
        arguments.append(f"named_parameters={named}")
    arguments += terms(draft, pair)
    made = OPTIMIZERS[pair.how].format(params=params)
    return f"hvd.DistributedOptimizer({', '.join([made, *arguments])})"


def terms(draft: Draft, pair: Pair) -> list[str]:
    """Further arguments of ``DistributedOptimizer``."""
    found: list[str] = []
    if draft.chance(0.12, "sum"):
        pair.op = "Sum"
        found.append("op=hvd.Sum")
    elif draft.chance(0.1, "predivide"):
        found.append("gradient_predivide_factor=4.0")
    if pair.how != "lbfgs" and draft.chance(0.15, "passes"):
        pair.passes = 2
        found.append("backward_passes_per_step=2")
    if draft.chance(0.08, "fp16") and pair.how != "lbfgs":  # its curvature makes 1e-3 a tenth
        draft.add("fp16")
        found.append("compression=hvd.Compression.fp16")
    if draft.chance(0.1, "groups"):
        found.append("groups=2")
    if pair.kind == "embedding" and draft.chance(0.3, "sparse_as_dense"):
        found.append("sparse_as_dense=True")
    if draft.chance(0.1, "process set") and not pair.number:  # the same ranks can be a set only once
        pair.everywhere = False
        ranks = draft.choose("[0, 1]", "[0, 2]", "[1, 2]")
        draft.add(
            "process set",
            f"set{pair.number} = hvd.add_process_set({ranks}) if size > 2 else hvd.global_process_set",
        )
        found.append(f"process_set=set{pair.number}")
    return found
