"""Execution of plans by ``farandole.jax`` on one rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
import optax

import farandole.jax as hvd
from farandole.graphs.library import original
from workbench.differential.frameworks.exchange import verbs_of
from workbench.differential.frameworks.network import batch, initial, metric
from workbench.differential.frameworks.optimizers import CLIP, DECAY, EPSILON, MOMENTUM
from workbench.differential.frameworks.plan import FrameworkPlan, PlanAction, PlanTerms, rows_of

Record: TypeAlias = Callable[[str, Any], None]
DTYPES = {
    "mixed": ("float32", "float64", "float64", "float32"),
    "mixed bfloat16": ("float32", "bfloat16", "float64", "float32"),
}

jax.config.update("jax_enable_x64", True)


def start(plan: FrameworkPlan) -> Callable[[str, PlanAction, Record], None]:
    """Join the job, and return the function that executes an action."""
    hvd.init(**plan.arguments)
    return JaxProgram(plan).act


def finish() -> None:
    """Wait for all ranks: a rank that leaves would end collectives that are under way on the others."""
    hvd.barrier()


def stop() -> None:
    """Leave the job."""
    hvd.shutdown()


def cause(error: BaseException) -> BaseException:
    """The error of Farandole that JAX has wrapped, or the error itself."""
    return original(error)


def transformation(terms: PlanTerms) -> Any:
    """The transformation of optax that a plan trains with."""
    clips = {"global": optax.clip_by_global_norm(CLIP), "value": optax.clip(CLIP)}
    parts = [clips[terms.clip]] if terms.clip else []
    if terms.decay:
        parts.append(optax.add_decayed_weights(DECAY))
    momentum = None if terms.optimizer == "sgd" else MOMENTUM
    sgd = optax.sgd(terms.rate, momentum, nesterov=terms.optimizer == "nesterov")
    parts.append(optax.adam(terms.rate, eps=EPSILON) if terms.optimizer == "adam" else sgd)
    return optax.chain(*parts) if len(parts) > 1 else parts[0]


def loss_of(params: Any, x: Any, y: Any) -> Any:
    """Mean squared error of the network."""
    hidden = jnp.tanh(x @ params["in"]["w"] + params["in"]["b"])
    return ((hidden @ params["out"]["w"] + params["out"]["b"] - y) ** 2).mean()


plain_gradients = jax.jit(jax.value_and_grad(loss_of))


@final
class JaxProgram:
    """One plan on this rank: its parameters, optimizer and step."""

    def __init__(self, plan: FrameworkPlan) -> None:
        self._plan, self._terms = plan, plan.terms
        self._dtypes = DTYPES.get(plan.terms.dtype, (plan.terms.dtype,) * 4)
        apart = hvd.rank() if plan.terms.initial == "broadcast" else 0
        self._params = self._tree(initial(plan.seed + plan.index, apart))
        if plan.terms.initial == "broadcast":
            self._params = hvd.broadcast_parameters(self._params, root_rank=0)
        self._set = hvd.global_process_set
        if len(plan.members(hvd.size())) < hvd.size():
            self._set = hvd.add_process_set(plan.members(hvd.size()))
        self._build()
        self._state = self._optimizer.init(self._params)

    def act(self, name: str, action: PlanAction, record: Record) -> None:
        """Execute one action, and record its results."""
        if action.kind == "metrics":
            self._exchange(name, action, record)
        elif action.kind == "reinit":
            hvd.shutdown()
            hvd.init(**self._plan.arguments)
            if "again" in action.how:
                self._build()
        if action.kind in ("spoil", "heal"):
            self._spoil(action)
        if action.kind in ("broadcast", "heal"):
            root = action.rank % hvd.size() if action.kind == "broadcast" else 0
            self._params = hvd.broadcast_parameters(self._params, root)
            self._state = hvd.broadcast_optimizer_state(self._state, root)
        if action.kind == "structure":
            self._change(action)
        if action.kind in ("train", "spoil", "heal", "structure"):
            self._train(name, action, record)
        for i, leaf in enumerate(self._leaves()):
            record(f"{name}.weight{i}", leaf)

    def _tree(self, weights: Any) -> Any:
        a, b, c, d = (jnp.asarray(w, dtype) for w, dtype in zip(weights, self._dtypes, strict=True))
        return {"in": {"w": a, "b": b}, "out": {"w": c, "b": d}}

    def _leaves(self) -> list[Any]:
        return [self._params[layer][part] for layer in ("in", "out") for part in ("w", "b")]

    def _build(self) -> None:
        terms, op = self._terms, getattr(hvd, self._terms.op)
        self._gradients: Any = plain_gradients
        self._optimizer: Any = transformation(terms)
        if terms.overlap and not self._set.included():  # the call would be refused there
            return self._compile()
        if terms.overlap:
            self._gradients = hvd.value_and_grad(
                loss_of, op=op, name="overlapped", bucket_bytes=terms.overlap, process_set=self._set
            )
        else:
            self._optimizer = hvd.DistributedOptimizer(
                self._optimizer,
                op=op,
                compression=getattr(hvd.Compression, terms.compression),
                backward_passes_per_step=terms.passes,
                gradient_predivide_factor=terms.predivide,
                lag=terms.lag,
                process_set=self._set,
            )
        return self._compile()

    def _compile(self) -> None:
        donated = (0, 1) if self._terms.donate else ()
        self._compiled = jax.jit(partial(self._step, absent=-1), donate_argnums=donated)

    def _step(self, params: Any, state: Any, x: Any, y: Any, absent: int) -> tuple[Any, Any, Any]:
        loss, gradients = self._gradients(params, x, y)
        if absent >= 0:
            layer, part = ("in", "out")[absent // 2], "wb"[absent % 2]
            gradients = {**gradients, layer: {**gradients[layer], part: None}}
        updates, state = self._optimizer.update(gradients, state, params if self._terms.passes_params else None)
        if self._terms.averages_loss:
            loss = hvd.allreduce(loss, name="loss")
        return optax.apply_updates(params, updates), state, loss

    def _train(self, name: str, action: PlanAction, record: Record) -> None:
        rank, loss = hvd.rank(), None
        absent = action.number % 4 if "absent" in action.how and rank == action.rank % hvd.size() else -1
        absent = -1 if hvd.size() == 1 else absent
        step = self._compiled if self._terms.jit else partial(self._step, absent=absent)
        for i in range(action.steps):
            x, y = (jnp.asarray(each, "float32") for each in batch(action.number, i, rank, rows_of(self._plan, rank)))
            self._params, self._state, loss = step(self._params, self._state, x, y)
            if not self._terms.ahead:
                jax.block_until_ready((self._params, loss))
        jax.block_until_ready((self._params, self._state, loss))
        if loss is not None:
            record(f"{name}.loss", loss)

    def _spoil(self, action: PlanAction) -> None:
        members = self._plan.members(hvd.size())
        if hvd.rank() == members[action.rank % len(members)]:
            self._params["out"] = {k: v + jnp.asarray(0.25, v.dtype) for k, v in self._params["out"].items()}

    def _change(self, action: PlanAction) -> None:
        """Give one rank an optimizer with other parameters than the other ranks have."""
        if hvd.size() == 1:
            return
        if hvd.rank() == action.rank % hvd.size():
            if "shape" in action.how:
                self._params["out"]["b"] = jnp.zeros((1, 2), self._dtypes[3])
            else:
                self._params["out"]["more"] = jnp.zeros((2,), self._dtypes[3])
        self._state = self._optimizer.init(self._params)

    def _exchange(self, name: str, action: PlanAction, record: Record) -> None:
        """Collectives, which a compiled program starts in another order on every rank."""
        size = hvd.size()
        verbs = verbs_of(action.how)
        first = (hvd.rank() if self._terms.jit else 0) % len(verbs)
        turned = verbs[first:] + verbs[:first]
        dtype = "float64" if self._terms.dtype == "float64" else "float32"

        def together(x: Any) -> dict[str, Any]:
            return {verb: collective(verb, x, f"{action.number}.{verb}", size) for verb in turned}

        program = jax.jit(together) if self._terms.jit else together
        found = program(jnp.asarray(metric(action.number, hvd.rank(), size, action.how), dtype))
        for verb in verbs:
            record(f"{name}.{verb}", np.asarray(found[verb]))


def collective(verb: str, x: Any, name: str, size: int) -> Any:
    """Call the collective that plans name ``verb``."""
    ops = {"mean": hvd.Average, "sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}
    if verb in ops:
        return hvd.allreduce(x, name=name, op=ops[verb])
    if verb == "gather":
        return hvd.allgather(x, name=name)
    if verb == "copy":
        return hvd.broadcast(x, size - 1, name=name)
    return hvd.reducescatter(x, name=name, op=hvd.Sum) if verb == "scatter" else hvd.alltoall(x, name=name)
