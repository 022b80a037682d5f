"""Functions of ``farandole.mxnet``, which also accept Gluon parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, final

import mxnet as mx
from mxnet.gluon import Parameter, ParameterDict

from farandole.adapters.mxnet import NDArray, verbs
from farandole.runtime.collectives.ops import Ops
from farandole.runtime.session.process_sets import ProcessSet, global_process_set


@final
class MxnetOps(Ops[NDArray]):
    """The functions of ``farandole.mxnet``."""

    def broadcast_parameters(
        self,
        params: Mapping[str, NDArray] | Iterable[tuple[str, NDArray] | NDArray],
        root_rank: int,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Overwrite arrays and parameters with the values of the rank ``root_rank``.

        >>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)

        ``params``: the ``ParameterDict`` of a block, whose parameters are matched by their order; or, matched by name,
        a mapping of names to arrays or parameters, or a list of arrays or (name, array) pairs. A parameter without a
        known shape is overwritten when the first forward pass has initialized it.
        """
        given: Any = params.items() if isinstance(params, Mapping) else params
        if isinstance(params, ParameterDict):
            # Gluon numbers the blocks of a process in their names, so names differ if a rank has made one block more.
            given = [(f"{i}.{re.sub('[0-9]+', '', name)}", each) for i, (name, each) in enumerate(params.items())]
        arrays: list[Any] = []
        for each in given:
            name, value = each if isinstance(each, tuple) and len(each) == 2 else ("", each)
            if not isinstance(value, Parameter):
                arrays.append(each)
            elif value._deferred_init:
                _broadcast_once_made(value, name or value.name, root_rank, process_set)
            else:
                arrays += _named_data(value, name or value.name)
        super().broadcast_parameters(arrays, root_rank, process_set)

    def _listed(self, splits: Any) -> Any:
        return splits.asnumpy().tolist() if isinstance(splits, mx.nd.NDArray) else splits

    def _counts(self, counts: tuple[int, ...]) -> NDArray:
        made = mx.nd.array(counts, dtype="int32")
        return made.as_np_ndarray() if mx.util.is_np_array() else made


def _named_data(param: Parameter, name: str) -> list[tuple[str, NDArray]]:
    """Arrays of a parameter, one for each context, with unique names."""
    return [(f"{name}.{i}" if i else name, each) for i, each in enumerate(param.list_data())]


def _broadcast_once_made(param: Parameter, name: str, root_rank: int, process_set: ProcessSet) -> None:
    """Broadcast ``param`` as soon as Gluon makes its arrays for the first time."""

    def make(data: Any, contexts: Any) -> None:
        del param._init_impl  # uncovers the method of the class
        param._init_impl(data, contexts)
        named = _named_data(param, name)
        for begun in [
            verbs.broadcast([array], root_rank, f"parameter.{each}", process_set, in_place=True).begin()
            for each, array in named
        ]:
            begun.wait()

    param._init_impl = make
