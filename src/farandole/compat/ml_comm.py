"""Interface of the machine-learning plugin of Cray's programming environment (``ml_comm``, later ``dl_comm``).

    import farandole.compat.ml_comm as mc       # or ``import ml_comm as mc`` under ``farandole run --cray``

    mc.init_mpi()
    mc.init(2, 1, parameters, "tensorflow")     # 1 team of 2 helper threads, for that many elements
    mc.config_team(0, 0, steps // 5, steps, 2, 100)
    weights = mc.broadcast(weights, 0)
    gradients = mc.gradients(gradients, 0)
    mc.finalize()

Tensors may be of TensorFlow (in graphs, too), PyTorch or NumPy, of float32 or float64.

A team reduces a flat buffer; each helper thread has its own slice and its own engine. In the blocking phase
``gradients`` returns the average over all ranks; in the pipelined phase it returns the average of the previous step,
while the current one is reduced. ``ksteps`` of ``config_team`` is the number of blocking steps before the pipelined
ones; if it is negative (CosmoFlow's ``cool_down``), the last ``-ksteps`` of ``max_steps`` block, after pipelined ones.

The interface covers the calls of public programs (CosmoFlow at NERSC) and HPE's documentation of ``dl_comm`` 24.11.
"""

# Threads. One thread at a time calls ``gradients`` of a team; a lock ensures this for graphs that would call it twice
# at once. Each helper thread reduces one slice, in a lane that no other thread uses, and is joined before the buffer is
# read or written again.

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from farandole.adapters.numpy import adapter
from farandole.collective import ReduceOp, Reduction
from farandole.errors import UnsupportedError, UsageError
from farandole.gradients.background import BackgroundTask
from farandole.numpy import ops
from farandole.runtime.collectives import basics
from farandole.runtime.collectives.adapter import TensorSpec
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.session.init import current, is_initialized, shutdown
from farandole.runtime.session.init import init as begin_session
from farandole.runtime.session.process_sets import global_process_set

__all__ = [
    "average", "barrier", "broadcast", "check_buffers_match", "config_team", "finalize", "get_nranks", "get_rank",
    "gradients", "init", "init_mpi",
]  # fmt: skip

Values = npt.NDArray[Any]

_WIDEST = 8
"""Bytes of a float64 element."""


class TeamSchedule(NamedTuple):
    """Blocking steps: the ``first`` ones, and all from ``last_from`` on."""

    first: int = sys.maxsize
    last_from: int = sys.maxsize

    @staticmethod
    def of(ksteps: int, max_steps: int) -> TeamSchedule:
        """Schedule for the arguments of ``config_team``.

        >>> [TeamSchedule.of(2, 5).is_pipelined(step) for step in range(5)]
        [False, False, True, True, True]
        >>> [TeamSchedule.of(-2, 5).is_pipelined(step) for step in range(5)]
        [True, True, True, False, False]
        """
        return TeamSchedule(ksteps) if ksteps >= 0 else TeamSchedule(0, max_steps + ksteps)

    def is_pipelined(self, step: int) -> bool:
        """True if ``gradients`` does not wait in this step, counted from 0."""
        return self.first <= step < self.last_from


@final
class CommTeam:
    """Communication of one team: ``threads`` lanes over the slices of a buffer of ``elements``."""

    def __init__(self, number: int, threads: int, elements: int) -> None:
        self.number, self.elements = number, elements
        self.schedule, self.verbosity, self.report_every = TeamSchedule(), 0, 0
        self.step, self._waited_s = 0, 0.0
        self._share = -(-elements // threads)
        session = current("ml_comm.init()")
        self._lanes = [PlannedLane(session, global_process_set, f"ml_comm {number}.{i}") for i in range(threads)]
        self._memory = [lane.allocate(self._share * _WIDEST) for lane in self._lanes]
        self._under_way: list[BackgroundTask[None]] = []
        self._form: list[tuple[Any, tuple[int, ...]]] = []  # dtypes and shapes of the pending reduction
        self._lock = threading.Lock()

    def begin(self, schedule: TeamSchedule) -> None:
        """Finish the pending reduction, and count steps from 0 again."""
        with self._lock:
            self._await()
            self.schedule, self.step = schedule, 0

    def reduce(self, arrays: Sequence[Values]) -> list[Values]:
        """Averages over all ranks: of these arrays, or of the arrays of the previous step."""
        with self._lock:
            dtype, count = self._checked(arrays)
            slices = self._slices(dtype, count)
            results = [np.zeros(each.shape, dtype) for each in arrays]
            is_pipelined = self.schedule.is_pipelined(self.step)
            has_last, form = bool(self._under_way), [(dtype, each.shape) for each in arrays]
            if is_pipelined and has_last and form != self._form:
                raise UsageError(f"ml_comm.gradients: team {self.number} is in the middle of another list of tensors")
            self._await()
            if is_pipelined and has_last:
                _gather(slices, results)
            _scatter(arrays, slices)
            self._begin(slices)
            self._form = form
            if not is_pipelined:
                self._await()
                _gather(slices, results)
            self.step += 1
            self._report()
            return results

    def close(self) -> None:
        """Finish the pending reduction, and close the lanes."""
        self._await()
        for lane in self._lanes:
            lane.close()

    def _checked(self, arrays: Sequence[Values]) -> tuple[Any, int]:
        dtypes, count = {each.dtype for each in arrays}, sum(each.size for each in arrays)
        if len(dtypes) != 1 or not dtypes <= {np.dtype("float32"), np.dtype("float64")}:
            found = ", ".join(sorted(map(str, dtypes)))
            raise UnsupportedError(f"ml_comm.gradients of {found}: give one list of float32, or one of float64")
        if count > self.elements:
            raise UsageError(
                f"ml_comm.gradients of {count} elements: team {self.number} was made for {self.elements}; pass "
                f"total_model_elements={count} to init()"
            )
        return dtypes.pop(), count

    def _slices(self, dtype: Any, count: int) -> list[Values]:
        """Views of the buffer for ``count`` elements, one for each lane."""
        share, found = -(-count // len(self._lanes)), []
        for i, memory in enumerate(self._memory):
            length = max(0, min(share, count - i * share))
            array = memory.array(adapter.array(np.empty(0, dtype)).dtype, 0, length)
            view = adapter.view(array, TensorSpec((length,), dtype.name, dtype.itemsize))
            assert view is not None
            found.append(view)
        return found

    def _begin(self, slices: Sequence[Values]) -> None:
        how = Reduction(ReduceOp.AVERAGE)
        self._under_way = [
            BackgroundTask(partial(lane.allreduce, "gradients", adapter.array(view), how), f"farandole {lane.label}")
            for lane, view in zip(self._lanes, slices, strict=True)
        ]

    def _await(self) -> None:
        began_s = time.monotonic()
        tasks, self._under_way = self._under_way, []
        for task in tasks:
            task.result()
        self._waited_s += time.monotonic() - began_s

    def _report(self) -> None:
        if self.verbosity and self.report_every and self.step % self.report_every == 0:
            mean_ms, self._waited_s = 1e3 * self._waited_s / self.report_every, 0.0
            if get_rank() == 0:
                print(f"ml_comm: team {self.number}, step {self.step}: waited {mean_ms:.2f} ms per step", flush=True)


_teams: dict[int, CommTeam] = {}


def init_mpi() -> None:
    """Join the job; ``init`` calls this if the script did not."""
    if not is_initialized():
        begin_session()


def init(nthreads_per_team: int, nteams: int, total_model_elements: int, framework: str = "tensorflow") -> None:  # noqa: ARG001 (known from the tensors)
    """Make teams 0 to ``nteams - 1`` of helper threads, for at most ``total_model_elements`` elements. Collective.

    >>> mc.init(2, 1, 7_041_443, "tensorflow")
    """
    if min(nthreads_per_team, nteams, total_model_elements) < 1:
        raise UsageError(f"ml_comm.init({nthreads_per_team}, {nteams}, {total_model_elements}): give numbers from 1 on")
    init_mpi()
    for number in range(nteams):
        _teams[number] = CommTeam(number, nthreads_per_team, total_model_elements)


def config_team(
    team: int, transition_algorithm: int, ksteps: int, max_steps: int, verbosity: int = 0, perf_freq: int = 0
) -> None:
    """Choose which of ``max_steps`` steps block; rank 0 prints its waiting time every ``perf_freq`` steps.

    >>> mc.config_team(0, 0, 200, 1000, 2, 100)     # the first 200 block, the rest are pipelined
    """
    if transition_algorithm != 0:
        raise UnsupportedError(f"ml_comm.config_team(transition_algorithm={transition_algorithm}): only 0 is known")
    found, said = _team(team), (ksteps, max_steps)
    if any(other != said for other in allgather_object(said, f"ml_comm.config {team}")):
        raise UsageError(f"ml_comm.config_team(ksteps={ksteps}, max_steps={max_steps}): other ranks have other values")
    found.begin(TeamSchedule.of(ksteps, max_steps))
    found.verbosity, found.report_every = verbosity, perf_freq


def gradients(tensors: Sequence[Any], team: int = 0) -> list[Any]:
    """Averages over all ranks: of these tensors in the blocking phase, of the previous step in the pipelined phase.

    The first pipelined step returns zeros. A switch back to blocking drops the pending average.
    """
    return _mapped(_team(team).reduce, tensors)


def broadcast(tensors: Sequence[Any], root: int = 0) -> list[Any]:
    """New tensors with the values of ``tensors`` on the rank ``root``."""
    return _mapped(lambda arrays: [ops.broadcast(each, root) for each in arrays], tensors)


def average(array: Values) -> Values:
    """Average an array over all ranks, in place."""
    if not isinstance(array, np.ndarray):
        raise UsageError(f"ml_comm.average of a {type(array).__name__}: give an array of NumPy, which it writes to")
    ops.allreduce_(array, op=basics.Average)
    return array


def check_buffers_match(tensors: Sequence[Any], verbose: int = 0) -> int:
    """Number of tensors whose bits differ between ranks; with ``verbose`` rank 0 prints which."""
    own = [hashlib.sha256(np.ascontiguousarray(_array(each)).tobytes()).hexdigest() for each in tensors]
    everybody = allgather_object(own, "ml_comm.check")
    count = max(map(len, everybody))
    differing = [i for i in range(count) if len({tuple(each[i : i + 1]) for each in everybody}) > 1]
    if verbose and get_rank() == 0:
        print(f"ml_comm: {len(differing)} of {count} buffers differ {differing[:10] or ''}".rstrip(), flush=True)
    return len(differing)


def get_rank() -> int:
    """Rank of this process."""
    return basics.rank()


def get_nranks() -> int:
    """Number of ranks."""
    return basics.size()


def barrier() -> None:
    """Wait for all ranks."""
    basics.barrier()


def finalize() -> None:
    """End the teams and leave the job."""
    while _teams:
        _teams.popitem()[1].close()
    shutdown()


def _team(number: int) -> CommTeam:
    if number not in _teams:
        raise UsageError(f"ml_comm: no team {number}, there are {sorted(_teams)}: call init() with more of them")
    return _teams[number]


def _scatter(arrays: Sequence[Values], slices: Sequence[Values]) -> None:
    """Copy arrays into the slices, one after the other."""
    for view, part in zip(slices, _parts(arrays, slices), strict=True):
        view[:] = part


def _gather(slices: Sequence[Values], arrays: Sequence[Values]) -> None:
    """Copy the slices into arrays, one after the other."""
    for each, part in zip(arrays, _parts(slices, arrays), strict=True):
        each.reshape(-1)[:] = part


def _parts(arrays: Sequence[Values], like: Sequence[Values]) -> list[Values]:
    flat = np.concatenate([each.reshape(-1) for each in arrays])
    return np.split(flat, np.cumsum([each.size for each in like])[:-1])


def _mapped(call: Any, tensors: Sequence[Any]) -> list[Any]:
    """Apply ``call`` to the values of tensors; the results are tensors of the same kind."""
    tensors = list(tensors)
    tf, torch = sys.modules.get("tensorflow"), sys.modules.get("torch")
    if tf is not None and any(tf.is_tensor(each) or isinstance(each, tf.Variable) for each in tensors):
        values = [tf.convert_to_tensor(each) for each in tensors]
        if tf.executing_eagerly():
            return [tf.convert_to_tensor(each) for each in call([each.numpy() for each in values])]
        found = tf.numpy_function(lambda *arrays: call(arrays), values, [each.dtype for each in values])
        for each, like in zip(found, values, strict=True):
            each.set_shape(like.shape)
        return list(found)
    results = call([_array(each) for each in tensors])
    if torch is not None and any(isinstance(each, torch.Tensor) for each in tensors):
        return [torch.from_numpy(each) for each in results]
    return list(results)


def _array(tensor: Any) -> Values:
    """Values of a tensor, as a view if possible."""
    detach = getattr(tensor, "detach", None)
    try:
        return np.asarray(tensor if detach is None else detach().cpu())
    except TypeError:  # bfloat16 of PyTorch
        raise UnsupportedError(f"ml_comm of a tensor of {tensor.dtype}: give float32 or float64") from None
