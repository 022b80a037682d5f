"""Function of each rank in ``farandole bench``: time the all-reduce of several engines in turns.

    farandole.run(measure, args=(("shm", "tcp"), 0.1), np=2)[0]

In turns, so that other load on the machine affects all engines alike. ``main`` is for ranks started by mpirun.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias, final

import msgspec

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.engines.candidates import usable
from farandole.engines.engine import Engine, Memory
from farandole.errors import EngineError, FarandoleError
from farandole.native import core
from farandole.runtime.session.init import current, init, shutdown

SIZES = (4, 1024, 16 * 2**10, 256 * 2**10, 2**20, 4 * 2**20, 16 * 2**20)
"""Array sizes in bytes."""
ROUNDS = 7
_MOST_TIMES = 200

Contender: TypeAlias = tuple[Engine, Memory]


@final
class Measured(msgspec.Struct, frozen=True):
    """Measurements of all ranks. ``seconds[engine][bytes]``: for each round, the median of the slowest rank.

    ``usable``: by rank; ``lacks``: why an engine could not be made.
    """

    hosts: list[str]
    usable: list[list[str]]
    seconds: dict[str, dict[int, list[float]]]
    lacks: dict[str, str]


def measure(names: Sequence[str], seconds: float) -> Measured:
    """Join the job, and measure each size of each engine for about ``seconds``. Every rank returns the same."""
    init()
    session = current()
    contenders: dict[str, Contender] = {}
    lacks: dict[str, str] = {}
    for name in names:
        try:
            engine = session.planned.engine(0, f"bench {name}", name)
            contenders[name] = engine, engine.allocate(max(SIZES))
        except FarandoleError as error:
            lacks[name.partition("+")[0]] = str(error).splitlines()[0]
    times: dict[str, dict[int, list[float]]] = {name.partition("+")[0]: {} for name in contenders}
    for nbytes in SIZES:
        for name, rounds in _in_turns(contenders, nbytes, seconds).items():
            times[name.partition("+")[0]][nbytes] = rounds
    # The same on all ranks: they share one installation.
    measured = Measured(list(session.topology.hosts), [usable()] * session.topology.size, times, lacks)
    shutdown()
    return measured


def _in_turns(contenders: dict[str, Contender], nbytes: int, seconds: float) -> dict[str, list[float]]:
    arrays = {
        name: (engine, memory.array(DType.FLOAT32, 0, nbytes // DType.FLOAT32.itemsize))
        for name, (engine, memory) in contenders.items()
    }
    times = {}
    for name, (engine, array) in arrays.items():
        _once(engine, array)
        each = _slowest(engine, statistics.median(_once(engine, array) for _ in range(3)))
        times[name] = max(2, min(_MOST_TIMES, int(seconds / ROUNDS / max(each, 1e-6))))
    found: dict[str, list[float]] = {name: [] for name in arrays}
    for _ in range(ROUNDS):
        for name, (engine, array) in arrays.items():
            median = statistics.median(_once(engine, array) for _ in range(times[name]))
            found[name].append(_slowest(engine, median))
    return found


def _once(engine: Engine, array: Array) -> float:
    """Time of one all-reduce in seconds, after all ranks wrote their arrays, as after a backward pass.

    Raises ``EngineError`` if the sum is wrong.
    """
    core.fill(array.address, array.count, array.dtype, 1.0)
    begin = time.perf_counter()
    engine.allreduce(array, Reduction(ReduceOp.SUM))
    seconds = time.perf_counter() - begin
    values = (ctypes.c_float * array.count).from_address(array.address)
    first, last, size = values[0], values[array.count - 1], engine.group.size
    if not first == last == size:
        raise EngineError(f"engine {engine.name} summed {size} ones to {first:g} and {last:g}")
    return seconds


def _slowest(engine: Engine, seconds: float) -> float:
    """Largest value of all ranks, returned on every rank."""
    said = ctypes.c_double(seconds)
    engine.allreduce(Array(ctypes.addressof(said), 1, DType.FLOAT64, said), Reduction(ReduceOp.MAX))
    return said.value


def main() -> None:
    """Entry point with ``FILE SECONDS ENGINE...``, run by mpirun once per rank; all write the same file."""
    target, seconds, *names = sys.argv[1:]
    partial = Path(f"{target}.{os.getpid()}")
    partial.write_bytes(msgspec.json.encode(measure(names, float(seconds))))
    partial.replace(target)  # atomic: other ranks do the same, and no partial file may stay
