"""Vocabulary for rounds of training: how gradients are zeroed, computed, changed and used."""

from __future__ import annotations

from workbench.differential.draft import Draft, FeatureEntry, Pair, entry
from workbench.differential.program import OWN

ZEROS: list[FeatureEntry] = []
PASSES: list[FeatureEntry] = []
CHANGES: list[FeatureEntry] = []


def train(draft: Draft) -> None:
    """One round of the current pair."""
    pair, begun, draft.uneven = draft.pair, len(draft.steps), False
    draft.take(ZEROS)
    if pair.how == "lbfgs":
        closure(draft)
    else:
        draft.take(PASSES)
        changes = draft.choose(0, 0, 1, 1, 2)
        for _ in range(changes):
            draft.take(CHANGES)
        own = f"{OWN} " if "raising hook" in {step.feature for step in draft.steps[begun:]} else ""
        draft.add("record", f'record("{draft.round} {own}gradients", *state({pair.m}))')
        draft.add("step", f"{pair.o}.step()")
    draft.add("record", f'record("{draft.round} weights", *state({pair.m}))')
    draft.round += 1


def loss(draft: Draft, pair: Pair, arguments: str = "") -> str:
    """The text of a loss that differs between ranks."""
    return f"{pair.m}(data({draft.number()}, rank){arguments}).square().mean()"


# -- zeroing ----------------------------------------------------------------------------------------------------------


@entry(ZEROS, "zero_grad", 6)
def _(draft: Draft) -> None:
    draft.add("zero_grad", f"{draft.pair.o}.zero_grad()")


@entry(ZEROS, "zeros", 3)
def _(draft: Draft) -> None:
    draft.add("zeros", f"{draft.pair.o}.zero_grad(set_to_none=False)")


@entry(ZEROS, "model.zero_grad", 2, lambda draft: draft.pair.op == "Average")
def _(draft: Draft) -> None:
    draft.add("model.zero_grad", f"{draft.pair.m}.zero_grad()")


@entry(ZEROS, "set to None", 1, lambda draft: draft.pair.op == "Average")
def _(draft: Draft) -> None:
    draft.add("set to None", f"for p in {draft.pair.m}.parameters():", "    p.grad = None")


@entry(ZEROS, "kept sum", 1, lambda draft: draft.pair.op == "Average" and draft.pair.kind != "embedding")
def _(draft: Draft) -> None:
    draft.add("kept sum", "pass  # gradients add up")


@entry(ZEROS, "prefilled", 1, lambda draft: draft.pair.kind != "embedding")
def _(draft: Draft) -> None:
    """Gradients assigned by hand, to which the next pass adds."""
    prefill(draft, "prefilled", "requires_grad")


@entry(ZEROS, "prefilled frozen", 2, lambda draft: draft.pair.kind != "embedding" and draft.pair.frozen)
def _(draft: Draft) -> None:
    """Gradients assigned by hand to frozen parameters too: optimizers step with them."""
    prefill(draft, "prefilled frozen", "is_leaf")


def prefill(draft: Draft, feature: str, which: str) -> None:
    """Assign a gradient to every parameter with this attribute."""
    draft.add(
        feature,
        f"{draft.pair.o}.zero_grad()",
        f"for i, p in enumerate({draft.pair.m}.parameters()):",
        f"    if p.{which}:",
        f"        p.grad = noise(p, {draft.number() * 100} + i, rank)",
    )


# -- backward passes --------------------------------------------------------------------------------------------------


def repeat(draft: Draft, feature: str, *lines: str, may_refuse: bool = False) -> None:
    """Add these lines once for each backward pass that the optimizer expects before a step."""
    for _ in range(draft.pair.passes):
        draft.add(feature, *lines, may_refuse=may_refuse)


@entry(PASSES, "backward", 10)
def _(draft: Draft) -> None:
    for _ in range(draft.pair.passes):
        draft.add("backward", f"{loss(draft, draft.pair)}.backward()")


@entry(PASSES, "absent rank", 2)
def _(draft: Draft) -> None:
    who, draft.uneven = draft.choose("rank != 0", "rank == 0"), True
    repeat(draft, "absent rank", f"if {who}:", f"    {loss(draft, draft.pair)}.backward()")


@entry(PASSES, "unused layer", 2, lambda draft: not draft.pair.frozen)
def _(draft: Draft) -> None:
    repeat(draft, "unused layer", f"{loss(draft, draft.pair, ', skip=rank == 0')}.backward()")


@entry(PASSES, "checkpoint", 2)
def _(draft: Draft) -> None:
    skip = draft.choose("", "", ", skip=rank == 0") if not draft.pair.frozen else ""
    repeat(draft, "checkpoint", f"{loss(draft, draft.pair, ', reentrant=False' + skip)}.backward()")


@entry(PASSES, "reentrant", 2, lambda draft: draft.pair.kind != "embedding")
def _(draft: Draft) -> None:
    skip = draft.choose("", "", ", skip=rank == 0") if not draft.pair.frozen else ""
    may_refuse = draft.pair.kind == "tied" and draft.settings.get("overlap", "") != "step"
    repeat(
        draft, "reentrant", f"{loss(draft, draft.pair, ', reentrant=True' + skip)}.backward()", may_refuse=may_refuse
    )


@entry(PASSES, "autocast", 1.5, lambda draft: draft.pair.dtype == "float32")
def _(draft: Draft) -> None:
    repeat(
        draft,
        "autocast",
        'with torch.autocast("cpu", torch.bfloat16):',
        f"    loss = {loss(draft, draft.pair)}",
        "loss.float().backward()",
    )


@entry(PASSES, "scaler", 1.5, lambda draft: draft.pair.plain and draft.pair.kind != "embedding")
def _(draft: Draft) -> None:
    """A step that an infinity on one rank makes all ranks skip."""
    pair, factor = draft.pair, draft.choose("1.0", '(float("inf") if rank == size - 1 else 1.0)')
    draft.add(
        "scaler",
        'scaler = torch.amp.GradScaler("cpu", init_scale=256.0)',
        f"scaler.scale({loss(draft, pair)} * {factor}).backward()",
        f"scaler.unscale_({pair.o})",
        f"torch.nn.utils.clip_grad_norm_({pair.m}.parameters(), 1.0)",
        f"scaler.step({pair.o})",
        "scaler.update()",
        f"{pair.o}.zero_grad()",
    )


@entry(PASSES, "create_graph", 1.5, lambda draft: draft.pair.plain and draft.pair.kind != "embedding")
def _(draft: Draft) -> None:
    """A penalty on gradients that went through ``backward``."""
    pair = draft.pair
    draft.add(
        "create_graph",
        f"{loss(draft, pair)}.backward(create_graph=True)",
        f"penalty = sum(p.grad.square().sum() for p in graded({pair.m}))",
        f"({loss(draft, pair)} + penalty).backward()",
        may_refuse=True,
    )


@entry(PASSES, "autograd.grad", 1, lambda draft: draft.pair.kind not in ("embedding", "scalars"))
def _(draft: Draft) -> None:
    """A penalty on gradients from ``autograd.grad``, which touches no ``p.grad``."""
    pair = draft.pair
    repeat(
        draft,
        "autograd.grad",
        f"loss = {loss(draft, pair)}",
        f"wanted = [p for p in {pair.m}.parameters() if p.requires_grad]",
        "found = torch.autograd.grad(loss, wanted, create_graph=True)",
        "(loss + sum(g.square().sum() for g in found)).backward()",
    )


@entry(PASSES, "torch.func", 1, lambda draft: draft.pair.kind not in ("embedding", "tied") and draft.pair.passes == 1)
def _(draft: Draft) -> None:
    """Gradients that no backward pass has made are reduced by ``step``."""
    pair = draft.pair
    draft.add(
        "torch.func",
        f"{pair.o}.zero_grad()",
        f"weights = {{name: p.detach() for name, p in {pair.m}.named_parameters()}}",
        f"compute = lambda w: torch.func.functional_call({pair.m}, w, (data({draft.number()}, rank),)).square().mean()",
        "computed = torch.func.grad(compute)(weights)",
        f"for name, p in {pair.m}.named_parameters():",
        "    p.grad = computed[name].clone() if p.requires_grad else None",
        f"{pair.o}.synchronize()",
    )


@entry(PASSES, "compile", 0.15, lambda draft: draft.pair.kind == "linear")
def _(draft: Draft) -> None:
    backend = draft.choose("eager", "aot_eager")
    lines = (
        f"torch.compile({draft.pair.m}, backend={backend!r})(data({draft.number()}, rank)).square().mean().backward()"
    )
    repeat(draft, "compile", lines)


@entry(PASSES, "raising hook", 1.5, lambda draft: draft.pair.passes == 1)
def _(draft: Draft) -> None:
    """A pass that fails half-way, on one rank or on all, and is caught."""
    pair, here = draft.pair, draft.choose("rank == 0", "rank == size - 1", "True")
    overlapped = draft.settings.get("overlap", "") != "step"
    draft.add(
        "raising hook",
        f"with raising({pair.m}.{draft.choose('first', 'second')}, {here}):",
        f"    {loss(draft, pair)}.backward()",
        may_refuse=overlapped,
    )


@entry(PASSES, "two losses", 1, lambda draft: draft.pair.passes == 1 and draft.pair.op == "Average")
def _(draft: Draft) -> None:
    """Two passes, though the optimizer expects one."""
    draft.add("two losses", *(f"{loss(draft, draft.pair)}.backward()" for _ in range(2)))


@entry(PASSES, "no loss", 0.5)
def _(draft: Draft) -> None:
    draft.add("no loss", "pass  # step() without a backward pass")


def closure(draft: Draft) -> None:
    """A step that computes its gradients itself."""
    pair = draft.pair
    draft.add(
        "lbfgs",
        f"batch = data({draft.number()}, rank)",
        "def closure():",
        f"    {pair.o}.zero_grad()",
        f"    loss = {pair.m}(batch).square().mean()",
        "    loss.backward()",
        "    return loss",
        f"{pair.o}.step(closure)",
    )


# -- changes of reduced gradients -------------------------------------------------------------------------------------


def change(draft: Draft, feature: str, line: str) -> None:
    """Run ``line`` for every dense gradient."""
    draft.add(feature, f"for p in graded({draft.pair.m}):", f"    {line}")


CHANGES_BY_LINE = {
    "clip by value": "p.grad.clamp_(-0.05, 0.05)",
    "replaced": "p.grad = p.grad * 0.5",
    "data assigned": "p.grad.data = p.grad.data.clamp(-0.05, 0.05)",
    "set_": "p.grad.set_((p.grad * 0.5).detach())",
    "scaled": "p.grad.mul_(0.5)",
    "added to": "p.grad.add_(p.detach(), alpha=0.01)",
    "detached": "p.grad.detach_()",
    "cloned": "p.grad = p.grad.clone()",
}


def _by_line(feature: str) -> None:
    entry(CHANGES, feature, 1.0)(lambda draft: change(draft, feature, CHANGES_BY_LINE[feature]))


for _feature in CHANGES_BY_LINE:
    _by_line(_feature)


@entry(CHANGES, "clip by norm", 2)
def _(draft: Draft) -> None:
    if draft.pair.kind != "embedding":
        draft.add("clip by norm", f"torch.nn.utils.clip_grad_norm_({draft.pair.m}.parameters(), 0.1)")


@entry(CHANGES, "one set to None", 1)
def _(draft: Draft) -> None:
    draft.add("one set to None", f"{draft.pair.m}.second.weight.grad = None")


@entry(CHANGES, "kept", 2, lambda draft: draft.pair.passes == 1 and draft.pair.kind != "embedding" and not draft.uneven)
def _(draft: Draft) -> None:
    """Gradients kept aside, and zeroed as PyTorch does by default; their products are recorded at the end."""
    pair = draft.pair
    draft.add(
        "kept",
        f"kept.append([p.grad for p in graded({pair.m})])",
        f"{pair.o}.zero_grad()",
        f"{loss(draft, pair)}.backward()",
        f"kept.append([p.grad for p in graded({pair.m})])",
        f'record("{draft.round} kept", *dots(kept[-2:]))',
    )
