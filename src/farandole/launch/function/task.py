"""Worker of ``farandole.run``: fetches the function, calls it, and sends back its result or error.

The launcher starts it; it reads its ``worker_id`` and the controller's address from its environment, like any worker.
In an elastic job it connects to the process that called ``farandole.run``, which is not the launcher.
"""

from __future__ import annotations

import linecache
import os
import pickle
import sys
import traceback
import uuid
from typing import final

import cloudpickle
import msgspec

from farandole.cluster.contact import Contact, is_loopback
from farandole.cluster.detect import detect
from farandole.cluster.environment import CALLER, Environment
from farandole.control import task_pieces
from farandole.control.channel import Dealer
from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys
from farandole.control.os_text import pack, unpack
from farandole.errors import AbortError, FarandoleError
from farandole.runtime.session.tracebacks import folded
from farandole.settings import Settings

MODULE = "farandole.launch.function.task"


@final
class Task(msgspec.Struct, frozen=True):
    """The function, its arguments, and the caller's module search path, which is set before unpickling.

    Workers search that path first. ``cells``: sources without a file, by the names that tracebacks use.
    """

    path: list[str]
    call: bytes
    cells: dict[str, str] = {}

    def encode(self) -> bytes:
        """Encode the task for the workers."""
        return pack(msgspec.msgpack.encode, self, exact=True)


@final
class TaskValue(msgspec.Struct, frozen=True):
    """Pickled return value of the function, and the rank of the worker at that time."""

    rank: int
    pickled: bytes


@final
class TaskFailure(msgspec.Struct, frozen=True):
    """Exception of the function, as text and pickled (empty if that fails), with rank and host.

    ``is_consequence``: it raised because another rank had left or died.
    """

    rank: int
    host: str
    summary: str
    traceback: str
    exception: bytes
    is_consequence: bool


def main() -> None:
    """Entry point of the process; the exit code is 1 if the function raised."""
    environment = detect()
    if not environment.controller:
        sys.exit("farandole: this process runs the function given to farandole.run(), which starts it; you cannot")
    try:
        with _connect(environment) as dealer:
            sys.exit(_serve(dealer, environment))
    except FarandoleError as error:
        sys.exit(f"farandole: rank {environment.worker_id} on {environment.host}: {error}")


def _connect(environment: Environment) -> Dealer:
    caller = os.environ.pop(CALLER, "")  # removed: jobs that the function starts have their own
    said = Contact.decode(caller.encode()) if caller else Contact.read(environment.controller, environment.key)
    keys, timeout_s = JobKeys.from_secret(said.key), Settings.resolve().start_timeout_s
    address = said.addresses[0]
    if caller and not is_loopback(address):
        address = first_answering(said.addresses, keys, timeout_s)
    return Dealer(address, f"task-{uuid.uuid4().hex}".encode(), keys, timeout_s)


def _serve(dealer: Dealer, environment: Environment) -> int:
    timeout_s = Settings.resolve().start_timeout_s
    ok, payload = call(task_pieces.fetch(dealer, environment.worker_id, timeout_s, timeout_s), environment)
    # Received on return: our exit is reported on another path, and must not overtake a large result.
    task_pieces.send_result(dealer, environment.worker_id, ok, payload, timeout_s)
    return 0 if ok else 1


def call(payload: bytes, environment: Environment) -> tuple[bool, bytes]:
    """Unpickle and call; an error is a result, too, and is printed as Python would.

    In an elastic job a worker may be told to leave: then it exits as it would in a script.
    """
    try:
        task = unpack(msgspec.msgpack.Decoder(Task).decode, payload)
        sys.path[:] = [*task.path, *(each for each in sys.path if each not in task.path)]
        for name, source in task.cells.items():
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        func, args, kwargs = pickle.loads(task.call)  # noqa: S301 (from our launcher, over an authenticated channel)
        pickled = cloudpickle.dumps(func(*args, **kwargs))
        return True, msgspec.msgpack.encode(TaskValue(_rank(environment), pickled))
    except BaseException as error:  # sys.exit() in the function is a result, too
        if environment.is_elastic and isinstance(error, SystemExit):
            raise
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            error.__traceback__ = error.__traceback__.tb_next  # without this frame
        sys.stderr.write(folded(error))
        return False, _failed(error, environment)


def _rank(environment: Environment) -> int:
    """Rank of this worker; in an elastic job the rank in its last generation, if it was in any."""
    if not environment.is_elastic:
        return environment.worker_id
    from farandole.runtime.session.init import last_rank  # slow import, and some functions do not train

    rank = last_rank()
    return environment.worker_id if rank is None else rank


def _failed(error: BaseException, environment: Environment) -> bytes:
    summary = "".join(traceback.format_exception_only(error)).strip()
    text = folded(error)
    rank, is_consequence = _rank(environment), isinstance(error, AbortError)
    failure = TaskFailure(rank, environment.host, summary, text, _pickled(error), is_consequence=is_consequence)
    return pack(msgspec.msgpack.encode, failure)


def _pickled(error: BaseException) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(error.with_traceback(None))
        pickle.loads(pickled)  # noqa: S301 (made in the line above)
    except Exception:
        return b""
    return pickled
