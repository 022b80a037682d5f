"""What is asked of every cluster that lends workers, by ``python -m tests.support.clusters.on_ray`` and its like.

Each scenario prints one line of JSON: its name, and what it has seen. The tests read these.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from farandole.errors import FarandoleError

Run = Callable[..., list[Any]]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as functions of a user's script are


def play(run: Run, slots: int, ready: Callable[[], object] = lambda: None, *, nodes: int = 1) -> None:
    """Play all scenarios on a cluster with so many ``slots``, on ``nodes``; ``ready`` waits until it has them again."""
    patient = partial(run, start_timeout_s=120)
    with tempfile.TemporaryDirectory() as folder:
        for scenario in (returns, raises, loses_a_slot, is_interrupted, partial(trains_on, is_killed=nodes > 1)):
            ready()
            begin_s = time.monotonic()
            name = scenario.func.__name__ if isinstance(scenario, partial) else scenario.__name__
            show(name, **scenario(patient, Path(folder)), seconds=time.monotonic() - begin_s)
        ready()
        show("is_interrupted_elastic", **is_interrupted(patient, Path(folder), min_np=2, max_np=2))
    ready()
    show("lacks_slots", **raised(lambda: run(len, ("",), np=slots + 1, start_timeout_s=2)))
    show("is_none", **raised(lambda: run(len, ("",), np=0)))
    show("is_discovered", **raised(lambda: run(len, ("",), min_np=1, host_discovery_script="./hosts")))
    show("loaded", torch="torch" in sys.modules)


def show(scenario: str, **seen: Any) -> None:
    """Print what a scenario has seen."""
    print(json.dumps({"scenario": scenario, **seen}), flush=True)


# -- scenarios --------------------------------------------------------------------------------------------------------


def returns(run: Run, folder: Path) -> dict[str, Any]:
    """Every rank knows its place, finds its variables and those of nobody else, and adds up with the others."""

    def train(base: int, *, factor: int) -> dict[str, Any]:
        import numpy as np

        import farandole.numpy as hvd

        hvd.init()
        total = float(hvd.allreduce(np.full(2, base * factor * 1.0), op=hvd.Sum)[0])
        print(f"line of rank {hvd.rank()}", flush=True)
        places = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
        key, agent = os.environ["FARANDOLE_KEY"].encode(), os.getppid()
        known = [
            str(path)
            for pid in (agent, _parent(agent))
            for path in (Path(f"/proc/{pid}/cmdline"), Path(f"/proc/{pid}/environ"))
            if key in path.read_bytes()
        ]
        return {"places": places, "total": total, "colour": os.environ["COLOUR"], "key_seen_in": known}

    return {"results": run(train, (2,), {"factor": 3}, np=2, env={"COLOUR": "blue"})}


def raises(run: Run, folder: Path) -> dict[str, Any]:
    """An exception on one rank ends all, and comes back with its traceback."""

    def fails_on_one() -> None:
        _note(folder)
        if os.environ["FARANDOLE_RANK"] == "1":
            raise KeyError("no such key")
        signal.pause()

    return {**raised(lambda: run(fails_on_one, np=2)), "left": _left(folder)}


def loses_a_slot(run: Run, folder: Path) -> dict[str, Any]:
    """The process of the cluster that holds a slot is killed."""

    def kills_its_slot() -> None:
        import farandole.numpy as hvd

        hvd.init()
        _note(folder)
        hvd.barrier()
        if hvd.rank() == 0:
            os.kill(_parent(os.getppid()), signal.SIGKILL)
        signal.pause()  # in no collective: a rank that raises before the cluster has told of the slot would end the run

    return {**raised(lambda: run(kills_its_slot, np=2)), "left": _left(folder)}


def is_interrupted(run: Run, folder: Path, **size: int) -> dict[str, Any]:
    """Ctrl-C ends all workers before it goes on; ``size`` is that of the job, by default two workers."""
    caller = os.getpid()

    def waits() -> None:
        import farandole.numpy as hvd

        hvd.init()
        _note(folder)
        hvd.barrier()
        if hvd.rank() == 0:
            os.kill(caller, signal.SIGINT)
        signal.pause()

    try:
        run(waits, **(size or {"np": 2}))
    except KeyboardInterrupt:
        return {"interrupted": True, "left": _left(folder)}
    return {"interrupted": False}


def trains_on(run: Run, folder: Path, *, is_killed: bool) -> dict[str, Any]:
    """An elastic training goes on where the slot of a rank is killed, and has two workers again in the end."""

    def train() -> list[int]:
        import threading

        import numpy as np

        import farandole.numpy as hvd
        from farandole.elastic.worker import run as elastic
        from farandole.elastic.worker.state import ObjectState

        @elastic.run
        def loop(state: Any) -> None:
            while state.sizes[-3:] != wanted:
                hvd.allreduce(np.ones(1), name="step")
                state.sizes = [*state.sizes, hvd.size()] if state.sizes[-1:] != [hvd.size()] else state.sizes
                state.commit()
                if is_killed and hvd.rank() == 1 and not (folder / "killed").exists():
                    (folder / "killed").touch()
                    os.kill(_parent(os.getppid()), signal.SIGKILL)
                threading.Event().wait(0.01)

        hvd.init()
        state: Any = ObjectState(sizes=[])
        loop(state)
        return list(state.sizes)

    wanted = [2, 1, 2] if is_killed else [2]
    results = run(train, min_np=1, max_np=2)
    (folder / "killed").unlink(missing_ok=True)
    return {"results": results}


# -- what they have in common -----------------------------------------------------------------------------------------


def raised(call: Callable[[], object]) -> dict[str, Any]:
    """The error of a call, if it is one of Farandole's, and when it came."""
    begin_s = time.monotonic()
    try:
        result = call()
    except FarandoleError as error:
        return {"error": type(error).__name__, "text": str(error), "raised_s": time.monotonic() - begin_s}
    return {"error": "", "text": repr(result)}


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _note(folder: Path) -> None:
    """Note this process, and the agent that has started it."""
    for pid in (os.getpid(), os.getppid()):
        (folder / str(pid)).touch()


def _left(folder: Path) -> list[str]:
    """The processes that were noted, and have not ended ten seconds later."""
    until_s, left = time.monotonic() + 10, []
    for note in list(folder.iterdir()):
        with _opened(int(note.name)) as ending:
            poll = select.poll()
            if ending >= 0:
                poll.register(ending, select.POLLIN)
                left += [] if poll.poll(max(0.0, until_s - time.monotonic()) * 1000) else [note.name]
        note.unlink()
    return left


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[int]:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        yield -1
        return
    try:
        yield fd
    finally:
        os.close(fd)
