"""``farandole.jax`` under the contract of bindings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from workbench.binding.under_test import BindingUnderTest, Distributed, Trainer, Values


class JaxUnderTest(BindingUnderTest):
    """``farandole.jax``, with arrays of 64 bits."""

    name = "jax"
    in_place = False
    takes_pytrees = True

    def __init__(self) -> None:
        import jax

        import farandole.jax as hvd
        from farandole.jax import elastic

        jax.config.update("jax_enable_x64", True)
        self.jax, self.hvd, self.elastic = jax, hvd, elastic

    def make(self, values: npt.ArrayLike, dtype: str = "float64") -> Any:
        return self.jax.numpy.asarray(np.array(values)).astype(dtype)

    def values(self, tensor: Any) -> Values:
        found = np.asarray(tensor)
        return found if np.iscomplexobj(found) else found.astype(np.float64)

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype.name)

    def views(self, values: Values) -> list[Any]:
        return [self.make(values).T, self.make(values)[:, ::2]]

    def repeated(self, value: float, count: int) -> Any:
        return self.jax.numpy.full(count, value)

    def distributed(self, like: Mapping[str, Any], **options: Any) -> Distributed:
        import optax

        optimizer = self.hvd.DistributedOptimizer(optax.identity(), **options)
        state, passes = optimizer.init(dict(like)), 0

        def reduce(gradients: Mapping[str, Any]) -> dict[str, Any] | None:
            nonlocal state, passes
            reduced, state = optimizer.update(dict(gradients), state)
            passes += 1
            return None if passes % options.get("backward_passes_per_step", 1) else reduced

        return reduce

    def compiled(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return cast("Callable[[Any], Any]", self.jax.jit(function))

    def broadcast_parameters(self, params: Any, root_rank: int) -> Any:
        return self.hvd.broadcast_parameters(params, root_rank=root_rank)

    def outlandish(self) -> Any:
        return self.jax.numpy.ones(3, "float8_e5m2")

    def trainer(self, rule: str, distributed: bool = True, **options: Any) -> Trainer | None:
        if "virtual_workers" in options:
            return JaxShardTrainer(rule, **options)
        return None if options else JaxTrainer(rule, distributed)  # no loss scales

    def state(self, **values: Any) -> Any:
        return self.elastic.JaxState(**values)


class JaxTrainer(Trainer):
    """With optax, and all of a step in one program."""

    def __init__(self, rule: str, distributed: bool) -> None:
        import jax
        import jax.numpy as jnp
        import optax

        import farandole.jax as hvd
        from farandole.jax.elastic import JaxState, translated

        self.jax, self.translated, self.make_state = jax, translated, JaxState
        self.gathered: Any = None
        optimizer: Any = optax.adam(0.05) if rule == "adam" else optax.sgd(0.05, momentum=0.9)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer)
        params = {"w": jnp.zeros((3, 1)), "b": jnp.zeros(1)}
        self.held: Any = SimpleNamespace(params=params, opt_state=optimizer.init(params))

        def loss_of(params: Any, x: Any, y: Any) -> Any:
            return ((x @ params["w"] + params["b"] - y) ** 2).mean()

        def applied(params: Any, state: Any, gradients: Any) -> Any:
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        self.gradients, self.applied = jax.jit(jax.grad(loss_of)), jax.jit(applied)
        self.stepped = jax.jit(lambda params, state, x, y: applied(params, state, jax.grad(loss_of)(params, x, y)))

    def step(self, x: Values, y: Values) -> None:
        import farandole.jax as hvd

        with self.translated():
            if self.gathered is not None:
                assert len(self.gathered(np.ones(1))) == hvd.size(), "a program of a generation before"
            stepped = self.stepped(self.held.params, self.held.opt_state, x, y)
            self.held.params, self.held.opt_state = self.jax.block_until_ready(stepped)

    def weights(self) -> dict[str, Values]:
        return {name: np.array(each) for name, each in self.held.params.items()}

    def add(self, name: str, amount: float) -> None:
        self.held.params = {**self.held.params, name: self.held.params[name] + amount}

    def state(self, **values: Any) -> Any:
        import farandole.jax as hvd
        from farandole.runtime.session.init import current

        self.gathered = self.jax.jit(hvd.allgather)
        if current("state()").provisional:  # a worker that has come later is alone here
            self.gathered(np.ones(1))
        self.held = self.make_state(params=self.held.params, opt_state=self.held.opt_state, **values)
        return self.held


class JaxShardTrainer(JaxTrainer):
    """With virtual workers: a program for the gradients of a shard, and one for the step."""

    def __init__(self, rule: str, **options: Any) -> None:
        import farandole.jax as hvd

        super().__init__(rule, distributed=False)
        self.average: Any = hvd.DistributedGradients(self.held.params, **options)

    def step(self, x: Values, y: Values) -> None:
        params = self.held.params
        for shard in self.average.shards(len(x)):
            self.average.add(self.gradients(params, x[shard.rows], y[shard.rows]))
        self.held.params, self.held.opt_state = self.applied(params, self.held.opt_state, self.average.total(params))
