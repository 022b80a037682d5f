"""Run a function on N ranks of a real job, started by plain environment variables, without a launcher.

    from workbench.jobs import NumpyCalls, run_job

    def program(member: RankContext) -> float:
        init()
        x = np.ones(3, np.float32)
        NumpyCalls().allreduce("x", x)
        shutdown()
        return float(x[0])

    assert run_job(program, 2) == [2.0, 2.0]

``program`` calls ``init`` itself, so that a test can also check what happens before and after.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

import cloudpickle
import numpy as np
import numpy.typing as npt

from farandole.cluster.environment import CONTROLLER, KEY, OWN
from farandole.collective import Array, DType, Kind, ReduceOp, Reduction
from farandole.control.addresses import free_port
from farandole.control.keys import new_secret
from farandole.runtime.lanes.call import Call, CallResult, Handle
from farandole.runtime.session.init import current
from farandole.testing.harness import run_ranks
from farandole.testing.rank import RankContext

Values = npt.NDArray[Any]


def run_job(
    program: Callable[..., Any],
    size: int,
    *args: Any,
    timeout_s: float = 120.0,
    environment: Mapping[str, str] | None = None,
    may_die: Collection[int] = (),
) -> list[Any]:
    """Like ``harness.run_ranks``, with the variables of a job set in every process."""
    cloudpickle.register_pickle_by_value(sys.modules[program.__module__])  # tests need not be importable
    told = {
        OWN.size: str(size),
        CONTROLLER: f"tcp://127.0.0.1:{free_port()}",
        KEY: new_secret(),
        **(environment or {}),
    }
    return run_ranks(_in_job, size, program, args, timeout_s=timeout_s, environment=told, may_die=may_die)


def _in_job(member: RankContext, program: Callable[..., Any], args: Sequence[Any]) -> Any:
    os.environ[OWN.rank] = str(member.rank)
    return program(member, *args)


@final
class NumpyCalls:
    """Collectives on NumPy arrays through the session, like a framework's adapter.

    ``dtype`` is the type of the memory if NumPy has no such type (bfloat16 is stored in uint16).
    """

    def __init__(self, process_set: int = 0, dtype: DType | None = None) -> None:
        self._process_set, self._dtype = process_set, dtype

    def submit(self, *calls: Call, background: bool = True) -> Handle:
        """Submit one call, or several as a group."""
        return current().submit(calls, background)

    def allreduce(
        self, name: str, x: Values, op: ReduceOp = ReduceOp.SUM, scales: tuple[float, float] = (1, 1)
    ) -> None:
        """All-reduce in place."""
        self.submit(self.reduction(name, x, op, scales), background=False).wait()

    def reduction(
        self, name: str, x: Values, op: ReduceOp = ReduceOp.SUM, scales: tuple[float, float] = (1, 1)
    ) -> Call:
        """Call that ``allreduce`` submits."""
        how = Reduction(op, *scales)
        return Call(Kind.ALLREDUCE, f"allreduce.{name}", self.array(x), x.shape, self._process_set, how)

    def broadcast(self, name: str, x: Values, root: int) -> None:
        """Broadcast in place."""
        call = Call(Kind.BROADCAST, f"broadcast.{name}", self.array(x), x.shape, self._process_set, root=root)
        self.submit(call, background=False).wait()

    def allgather(self, name: str, x: Values) -> tuple[Values, CallResult]:
        """Concatenation, and its outcome."""
        return self._made(Call(Kind.ALLGATHER, f"allgather.{name}", self.array(x), x.shape, self._process_set), x)

    def alltoall(self, name: str, x: Values, splits: tuple[int, ...] = ()) -> tuple[Values, CallResult]:
        """Received rows, and their outcome."""
        call = Call(Kind.ALLTOALL, f"alltoall.{name}", self.array(x), x.shape, self._process_set, splits=splits)
        return self._made(call, x)

    def reducescatter(self, name: str, x: Values, op: ReduceOp = ReduceOp.SUM) -> Values:
        """Rows of the reduction that this rank keeps."""
        how = Reduction(op)
        call = Call(Kind.REDUCESCATTER, f"reducescatter.{name}", self.array(x), x.shape, self._process_set, how)
        return self._made(call, x)[0]

    def array(self, x: Values) -> Array:
        """The memory of a contiguous NumPy array."""
        assert x.flags.c_contiguous
        return Array(x.ctypes.data, x.size, self._dtype or DType.from_name(x.dtype.name), x)

    def _made(self, call: Call, like: Values) -> tuple[Values, CallResult]:
        made = []

        def allocate(shape: tuple[int, ...]) -> Array:
            made.append(np.empty(shape, like.dtype))
            return self.array(made[0])

        call.allocate = allocate
        [outcome] = self.submit(call, background=False).wait()
        return made[0], outcome
