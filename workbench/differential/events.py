"""Vocabulary for events between rounds of training."""

from __future__ import annotations

from workbench.differential.building import OPTIMIZERS
from workbench.differential.draft import Draft, FeatureEntry, entry
from workbench.differential.training import loss

EVENTS: list[FeatureEntry] = []


def shared(draft: Draft) -> bool:
    """True if all ranks share every pair: events that change whole jobs do not mix with process sets."""
    return all(pair.everywhere for pair in draft.pairs)


@entry(EVENTS, "nothing", 12)
def _(draft: Draft) -> None:
    """Training goes on."""


@entry(EVENTS, "another model", 8, lambda draft: len(draft.pairs) > 1)
def _(draft: Draft) -> None:
    draft.pair = draft.pairs[1 - draft.pair.number]


# -- models -----------------------------------------------------------------------------------------------------------


@entry(EVENTS, "frozen", 3, lambda draft: not draft.pair.frozen and draft.pair.kind != "tied")
def _(draft: Draft) -> None:
    draft.pair.frozen = True
    draft.add("frozen", f"{draft.pair.m}.first.requires_grad_(False)")
    if draft.pair.op != "Average":
        draft.add("frozen", f"{draft.pair.o}.zero_grad()")


@entry(EVENTS, "thawed", 5, lambda draft: draft.pair.frozen)
def _(draft: Draft) -> None:
    draft.pair.frozen = False
    draft.add("thawed", f"{draft.pair.m}.first.requires_grad_(True)")


@entry(
    EVENTS,
    "swapped",
    2,
    lambda draft: (
        not draft.pair.reordered and not draft.pair.frozen and draft.pair.kind != "tied" and draft.pair.how != "lbfgs"
    ),
)
def _(draft: Draft) -> None:
    """Replace a layer, in the model and in the optimizer.

    Not if the rest is frozen: a parameter that was put into the optimizer's groups directly is reduced in ``step()``
    until a reduction has seen it, and nothing else would start a reduction at the end of the backward pass.
    """
    pair = draft.pair
    draft.add(
        "swapped",
        f"{pair.m}.second = linear(4, 2, {draft.number()}).to({pair.m}.second.weight.dtype)",
        f'{pair.o}.param_groups[0]["params"] = list({pair.m}.parameters())',
    )


@entry(EVENTS, "cast", 2, lambda draft: draft.pair.dtype == "float32" and draft.pair.how == "sgd")
def _(draft: Draft) -> None:
    draft.pair.dtype = "float64"
    draft.add("cast", f"{draft.pair.m}.double()")


@entry(EVENTS, "channels_last", 3, lambda draft: draft.pair.kind == "conv")
def _(draft: Draft) -> None:
    draft.add("channels_last", f"{draft.pair.m}.to(memory_format=torch.channels_last)")


@entry(EVENTS, "share_memory", 1)
def _(draft: Draft) -> None:
    draft.add("share_memory", f"{draft.pair.m}.share_memory()")


@entry(EVENTS, "grad_dtype", 1.5, lambda draft: draft.pair.dtype == "bfloat16" and draft.pair.plain_but_half)
def _(draft: Draft) -> None:
    """Gradients of another dtype than their parameters'."""
    pair = draft.pair
    draft.add(
        "grad_dtype",
        f"{pair.o}.zero_grad()",
        f"for p in {pair.m}.parameters():",
        "    p.grad_dtype = torch.float32",
        "    p.grad = torch.full(p.shape, 1.0 + rank)",
        f"{pair.o}.synchronize()",
        f'record("{draft.round} grad_dtype", *state({pair.m}))',
        f"{pair.o}.zero_grad()",
        f"for p in {pair.m}.parameters():",
        "    p.grad_dtype = None",
        may_refuse=True,
    )


@entry(EVENTS, "deepcopied model", 1.5, lambda draft: not draft.pair.reordered)
def _(draft: Draft) -> None:
    """Training goes on with a copy of the model, and a new optimizer for it."""
    pair = draft.pair
    pair.op, pair.passes, pair.how, pair.everywhere = "Average", 1, "sgd", True
    draft.add(
        "deepcopied model",
        f"{pair.m} = copy.deepcopy({pair.m})",
        f"{pair.o} = hvd.DistributedOptimizer(torch.optim.SGD({pair.m}.parameters(), lr=0.1))",
    )


@entry(EVENTS, "deepcopied optimizer", 1.5, lambda draft: draft.pair.kind != "tied")
def _(draft: Draft) -> None:
    pair = draft.pair
    draft.add("deepcopied optimizer", f"{pair.m}, {pair.o} = copy.deepcopy(({pair.m}, {pair.o}))", may_refuse=True)


# -- optimizers -------------------------------------------------------------------------------------------------------


@entry(EVENTS, "state dict", 3)
def _(draft: Draft) -> None:
    pair = draft.pair
    draft.add(
        "state dict",
        "file = io.BytesIO()",
        f"torch.save(({pair.m}.state_dict(), {pair.o}.state_dict()), file)",
        "file.seek(0)",
        "weights, states = torch.load(file, weights_only=True)",
        f"{pair.m}.load_state_dict(weights)",
        f"{pair.o}.load_state_dict(states)",
    )


@entry(EVENTS, "restored elsewhere", 1.5, lambda draft: not draft.pair.reordered and draft.pair.kind != "tied")
def _(draft: Draft) -> None:
    """A checkpoint is loaded into another model and a new optimizer, which had other weights on each rank."""
    pair = draft.pair
    pair.op, pair.passes, pair.everywhere = "Average", 1, True
    made = OPTIMIZERS[pair.how].format(params=f"{pair.m}.parameters()")
    draft.add(
        "restored elsewhere",
        "file = io.BytesIO()",
        f"torch.save(({pair.m}.state_dict(), {pair.o}.state_dict()), file)",
        "file.seek(0)",
        "weights, states = torch.load(file, weights_only=True)",
        f"{pair.m} = copy.deepcopy({pair.m})",
        f"[p.data.fill_(rank) for p in {pair.m}.parameters()]",
        f"{pair.o} = hvd.DistributedOptimizer({made})",
        f"{pair.m}.load_state_dict(weights)",
        f"{pair.o}.load_state_dict(states)",
    )


@entry(EVENTS, "optimizer state broadcast", 2, lambda draft: draft.pair.how != "lbfgs" and not draft.pair.reordered)
def _(draft: Draft) -> None:
    draft.add("optimizer state broadcast", f"hvd.broadcast_optimizer_state({draft.pair.o}, root_rank=size - 1)")


@entry(EVENTS, "gradient shared", 1, lambda draft: draft.pair.kind == "large" and draft.pair.dtype == "float32")
def _(draft: Draft) -> None:
    """One tensor as the gradient of two parameters."""
    pair = draft.pair
    draft.add(
        "gradient shared",
        f"{pair.o}.zero_grad()",
        f"{pair.m}.second.bias.grad = torch.ones(2) + rank",
        f"twin = torch.nn.Parameter({pair.m}.first[1].weight.detach().clone())",
        f'{pair.o}.add_param_group({{"params": [twin]}})',
        f"twin.grad = {pair.m}.first[1].weight.grad = torch.ones_like(twin) + rank",
        f"{pair.o}.synchronize()",
        f'record("{draft.round} shared", twin.grad, {pair.m}.first[1].weight.grad)',
        f"{pair.o}.zero_grad()",
    )


# -- several optimizers -----------------------------------------------------------------------------------------------


def both(draft: Draft) -> bool:
    """True if there are two pairs that can be trained together."""
    return (
        len(draft.pairs) > 1
        and shared(draft)
        and all(p.passes == 1 and p.how != "lbfgs" and p.op == "Average" for p in draft.pairs)
    )


@entry(EVENTS, "joint loss", 4, both)
def _(draft: Draft) -> None:
    """One pass through two models of two optimizers."""
    one, other = (loss(draft, pair) for pair in draft.pairs)
    draft.add(
        "joint loss", "o0.zero_grad()", "o1.zero_grad()", f"({one} + {other}).backward()", "o0.step()", "o1.step()"
    )
    draft.add("record", f'record("{draft.round} joint", *state(m0), *state(m1))')


@entry(EVENTS, "threads", 4, both)
def _(draft: Draft) -> None:
    """Two models that are trained by two threads."""
    lines = []
    for pair in draft.pairs:
        lines += [
            f"def train{pair.number}():",
            f"    {pair.o}.zero_grad()",
            f"    {loss(draft, pair)}.backward()",
            f"    {pair.o}.step()",
        ]
    draft.add("threads", *lines, "in_threads(hvd, train0, train1)")
    draft.add("record", f'record("{draft.round} threads", *state(m0), *state(m1))')


# -- the job ----------------------------------------------------------------------------------------------------------


@entry(EVENTS, "metrics", 4)
def _(draft: Draft) -> None:
    number = draft.number()
    draft.add("metrics", f'record("metrics {number}", *metrics(hvd, {number}))')


@entry(EVENTS, "average of a number", 2)
def _(draft: Draft) -> None:
    number = draft.number()
    draft.add("average of a number", f'record("number {number}", hvd.allreduce(torch.tensor([1.0 + rank])))')


@entry(EVENTS, "shutdown and init", 2, shared)
def _(draft: Draft) -> None:
    arguments = ", ".join(f"{name}={value!r}" for name, value in draft.settings.items())
    draft.add("shutdown and init", "hvd.shutdown()", f"hvd.init({arguments})")


@entry(EVENTS, "join", 2, lambda draft: shared(draft) and draft.pair.passes == 1 and draft.pair.how == "sgd")
def _(draft: Draft) -> None:
    """Ranks with more batches than others."""
    pair, order = draft.pair, draft.choose("rank + 1", "size - rank")
    draft.add(
        "join",
        f"for i in range({order}):",
        f"    {pair.o}.zero_grad()",
        f"    {loss(draft, pair)}.backward()",
        f"    {pair.o}.step()",
        "last = hvd.join()",
        f"hvd.broadcast_parameters({pair.m}.state_dict(), root_rank=last)",
        f"{pair.o}.zero_grad()",
        f'record("{draft.round} join", *state({pair.m}))',
    )


@entry(EVENTS, "infinities", 1.5)
def _(draft: Draft) -> None:
    number = draft.number()
    draft.add("infinities", f'record("infinities {number}", *infinities(hvd, {number}))')


@entry(EVENTS, "text", 1)
def _(draft: Draft) -> None:
    number = draft.number()
    draft.add("text", f'record("text {number}", *texts(hvd, {number}))')


# -- processes --------------------------------------------------------------------------------------------------------


@entry(EVENTS, "fork loader", 0.25)
def _(draft: Draft) -> None:
    number = draft.number()
    draft.add("fork loader", f'record("batches {number}", *batches(hvd, {number}, "fork"))')


@entry(EVENTS, "spawn loader", 0.06)
def _(draft: Draft) -> None:
    number = draft.number()
    draft.add("spawn loader", f'record("batches {number}", *batches(hvd, {number}, "spawn"))')


@entry(EVENTS, "augmentation", 0.3)
def _(draft: Draft) -> None:
    """A loader's process that draws random numbers."""
    number, method = draft.number(), draft.choose("fork", "fork", "fork", "fork", "spawn")
    draft.add("augmentation", f'record("augmented {number}", *augmented(hvd, {number}, {method!r}))')


@entry(EVENTS, "elastic loader", 0.3)
def _(draft: Draft) -> None:
    """Loaders of all ranks, no two of which draw the same random numbers."""
    number, processes = draft.number(), draft.choose(0, 1, 2)
    draft.add("elastic loader", f'record("noise {number}", *different_numbers(hvd, {number}, {processes}))')


@entry(EVENTS, "child that writes", 0.8, lambda draft: all(step.feature != "share_memory" for step in draft.steps))
def _(draft: Draft) -> None:
    """A forked child's writes stay in its own memory, unless the user has asked for shared memory."""
    draft.add(
        "child that writes",
        f"child_that_writes(hvd, {draft.pair.m})",
        f'record("{draft.round} after a child", *state({draft.pair.m}))',
    )


@entry(EVENTS, "child with init", 0.1)
def _(draft: Draft) -> None:
    draft.add("child with init", "child_with_init(hvd)")


@entry(EVENTS, "last checkpoint", 0.04)
def _(draft: Draft) -> None:
    draft.add("last checkpoint", f'record("last checkpoint {draft.number()}", *last_checkpoint(hvd))')


@entry(EVENTS, "signal handler", 0.4)
def _(draft: Draft) -> None:
    number = draft.number()
    nbytes = draft.choose(4, 4, 2**20)
    draft.add("signal handler", f'record("handler {number}", *interrupted(hvd, {number}, {nbytes}))', may_refuse=True)
