"""Oracle: the same program on plain PyTorch, with threads of this process as ranks, and averages in float64.

    outcomes = consult(program.compiled(), size=2)

It knows nothing of buckets, lanes or hooks. Whenever the outermost ``backward`` of a rank returns, the gradients of the
optimizers that it has touched are averaged by name; ``step`` does that if no backward pass has run since the last one.

Threads: one for each rank, and those that a program adds (``another_thread``). Ranks share only ``Meetings``, which has
a lock of its own, and ``torch.autograd.backward``, which is patched for the whole process while programs run: so
``_patching`` admits one call of ``consult`` at a time. The threads of one rank share its ``OracleHvd`` without a lock:
they train different optimizers, and name their collectives. The patch finds the rank of a pass by ``_of_this_thread``:
``hvd`` (absent in threads that belong to no rank), ``inside`` (an outer pass is under way) and ``touched``. That is
enough because on the CPU autograd runs a pass, with its hooks, in the thread that has called ``backward``.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import msgspec
import torch

from workbench.differential.meeting import Given, Meetings
from workbench.differential.oracle_optimizer import OracleOptimizer, ReductionTerms, distribute
from workbench.differential.outcome import Outcome, run

Average, Sum, Min, Max = 0, 1, 3, 4

Members: TypeAlias = tuple[int, ...]

_of_this_thread = threading.local()
_patching = threading.Lock()


@final
class _Set:
    """Stand-in for a process set."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = sorted(ranks)


@final
class _Compression:
    none, fp16, bf16 = "none", "fp16", "bf16"


@final
class OracleHvd:
    """Stand-in for ``farandole.torch`` on one rank."""

    is_oracle = True
    Average, Sum, Min, Max, Compression = Average, Sum, Min, Max, _Compression

    def __init__(self, rank: int, size: int, meetings: Meetings) -> None:
        self._rank, self._size, self._meetings = rank, size, meetings
        self._unnamed = 0
        self.optimizers: list[OracleOptimizer] = []
        self.parameters: list[torch.Tensor] = []
        self.steps: dict[str, bytes] = {}
        self.global_process_set = _Set(range(size))

    def rank(self) -> int:
        """See ``farandole.torch``, like the other methods that refer to this one."""
        return self._rank

    def size(self) -> int:
        """See ``rank``."""
        return self._size

    def init(self, **_: Any) -> None:
        """See ``rank``."""
        self.barrier()

    def shutdown(self) -> None:
        """See ``rank``."""
        self.barrier()

    def barrier(self) -> None:
        """See ``rank``."""
        self.meet("barrier", None)

    def join(self) -> int:
        """See ``rank``."""
        return self._meetings.join(self._rank)

    def add_process_set(self, ranks: Sequence[int]) -> _Set:
        """See ``rank``."""
        self.barrier()
        return _Set(ranks)

    def meet(self, name: str, value: Any, members: Members | None = None) -> Given:
        """Contribute ``value`` under a name; returns the values of all members, by rank."""
        return self._meetings.meet(self._rank, name, value, members or tuple(range(self._size)))

    @contextlib.contextmanager
    def another_thread(self) -> Iterator[None]:
        """Make the calling thread a thread of this rank; around all of its work."""
        _of_this_thread.hvd = self  # not undone: the thread ends with its work
        yield

    def more_threads(self, number: int) -> None:
        """Count ``number`` more threads that may call collectives, or fewer if it is negative."""
        self._meetings.more_threads(self._rank, number)

    def allreduce(
        self, tensor: torch.Tensor, name: str = "", op: int = Average, process_set: _Set | None = None
    ) -> torch.Tensor:
        """See ``rank``."""
        members = tuple((process_set or self.global_process_set).ranks)
        given = self.meet(self._name("allreduce", name), tensor.detach().double().clone(), members)
        return combine(list(given.values()), op, len(members)).to(tensor.dtype)

    def allgather(self, tensor: torch.Tensor, name: str = "") -> torch.Tensor:
        """See ``rank``."""
        given = self.meet(self._name("allgather", name), tensor.detach().clone())
        return torch.cat([given[rank] for rank in sorted(given)])

    def broadcast_object(self, found: Any, root_rank: int = 0, name: str = "") -> Any:
        """See ``rank``."""
        return copy.deepcopy(self.meet(self._name("object", name), copy.deepcopy(found))[root_rank])

    def broadcast_parameters(self, params: Any, root_rank: int) -> None:
        """See ``rank``."""
        mine = dict(params)
        theirs = self.meet("broadcast", {name: p.detach().clone() for name, p in mine.items()})[root_rank]
        with torch.no_grad():
            for name, p in mine.items():
                p.copy_(theirs[name])

    def broadcast_optimizer_state(self, optimizer: torch.optim.Optimizer, root_rank: int) -> None:
        """See ``rank``."""
        optimizer.load_state_dict(self.broadcast_object(optimizer.state_dict(), root_rank, "optimizer"))

    def DistributedOptimizer(  # noqa: N802 (it has this name)
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Any = None,
        compression: str = "none",
        backward_passes_per_step: int = 1,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: int = 0,
        sparse_as_dense: bool = False,
        process_set: _Set | None = None,
    ) -> OracleOptimizer:
        """See ``rank``."""
        members = tuple((process_set or self.global_process_set).ranks)
        return distribute(optimizer, self, named_parameters, ReductionTerms(op, backward_passes_per_step, members))

    def __deepcopy__(self, memo: Any) -> OracleHvd:
        return self

    def _name(self, kind: str, name: str) -> str:
        if not name:
            self._unnamed += 1
            name = f"noname.{self._unnamed}"
        return f"{kind}.{name}"


def combine(given: Sequence[torch.Tensor], op: int, size: int) -> torch.Tensor:
    """Reduce float64 tensors by ``op``; in sums and averages, ranks that have joined count as zero."""
    stacked = torch.stack(list(given))
    if op in (Min, Max):
        return stacked.amin(0) if op == Min else stacked.amax(0)
    return stacked.sum(0) / (size if op == Average else 1)


def consult(program: Callable[[Any, Any], None], size: int) -> list[Outcome]:
    """Run ``program`` on ``size`` ranks, each a thread; their outcomes, by rank."""
    meetings = Meetings(size)
    outcomes: dict[int, Outcome] = {}

    def be(rank: int) -> None:
        torch.set_num_threads(1)  # of this thread
        hvd = _of_this_thread.hvd = OracleHvd(rank, size, meetings)
        try:
            outcomes[rank] = msgspec.structs.replace(run(program, hvd), steps=hvd.steps)
        finally:
            meetings.more_threads(rank, -1)  # in any case: ranks that wait for this one must find out
            stepped = [p for each in hvd.optimizers for group in each.param_groups for p in group["params"]]
            for parameter in (*hvd.parameters, *stepped):  # of a layer that was replaced, and of its replacement
                parameter.grad = None  # with its graph it would keep the parameter, where no collector finds that

    with _backward_that_reduces(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # programs do what PyTorch warns about; filters are per process
        # Daemons, so that a rank that does not end cannot keep an interrupted fuzzer alive.
        threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [outcomes[rank] for rank in range(size)]


@contextlib.contextmanager
def _backward_that_reduces() -> Iterator[None]:
    """Patch ``backward``: on a rank's thread it ends with the reductions that are due; nested ones are part of it."""
    plain = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> None:
        hvd: OracleHvd | None = getattr(_of_this_thread, "hvd", None)
        if hvd is None or getattr(_of_this_thread, "inside", False):
            plain(*args, **kwargs)
            return
        touched: list[OracleOptimizer] = []
        _of_this_thread.inside, _of_this_thread.touched = True, touched
        hooks = [hook for optimizer in hvd.optimizers for hook in _watch(optimizer)]
        try:
            plain(*args, **kwargs)
        finally:
            _of_this_thread.inside = False
            for hook in hooks:
                hook.remove()
        for optimizer in dict.fromkeys(touched):  # each once, in the order in which the pass reached them
            optimizer.oracle.pass_ended()

    with _patching:
        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = plain


def _watch(optimizer: OracleOptimizer) -> list[Any]:
    """Hooks that note which optimizers the pass of a thread has touched."""

    def note(_: torch.Tensor) -> None:
        # Not a list of the closure's: threads watch all optimizers of their rank, so this runs in others' passes, too.
        _of_this_thread.touched.append(optimizer)

    params = [p for p in optimizer.oracle.params().values() if p.requires_grad]
    return [p.register_post_accumulate_grad_hook(note) for p in params]
