"""A worker of ``farandole.run``: fetches the function, calls it, and sends back what it returned or raised.

The launcher starts it; it finds its place and the controller in its environment, as any worker does.
"""

from __future__ import annotations

import pickle
import sys
import traceback
import uuid
from typing import final

import cloudpickle
import msgspec

from farandole.cluster.detect import detect
from farandole.cluster.environment import Environment
from farandole.control import messages
from farandole.control.channel import Dealer
from farandole.control.keys import JobKeys
from farandole.errors import AbortError, ControlError, FarandoleError
from farandole.settings import Settings

MODULE = "farandole.launch.task"


@final
class Task(msgspec.Struct, frozen=True):
    """The function, its arguments, and where the caller finds modules; the path counts before anything is unpickled."""

    path: list[str]
    call: bytes


@final
class Failure(msgspec.Struct, frozen=True):
    """What the function raised: for people, and pickled (empty if it cannot be).

    ``is_consequence`` if it raised because another rank had left or died.
    """

    summary: str
    traceback: str
    exception: bytes
    is_consequence: bool


def main() -> None:
    """Entry of the process; its exit code is 1 if the function raised."""
    environment = detect()
    if not environment.controller:
        sys.exit("farandole: this process runs the function given to farandole.run(), which starts it; you cannot")
    try:
        with _connect(environment) as dealer:
            sys.exit(_serve(dealer, environment.place))
    except FarandoleError as error:
        sys.exit(f"farandole: rank {environment.place} on {environment.host}: {error}")


def _connect(environment: Environment) -> Dealer:
    keys = JobKeys.from_secret(environment.key)
    identity = f"task-{uuid.uuid4().hex}".encode()
    return Dealer(environment.controller, identity, keys, Settings.resolve().start_timeout_s)


def _serve(dealer: Dealer, place: int) -> int:
    timeout_s = Settings.resolve().start_timeout_s
    dealer.send(messages.FetchTask(place))
    answer = dealer.recv(timeout_s)
    if not isinstance(answer, messages.Task):
        raise ControlError(f"the launcher sent no function within {timeout_s:g} s, but {answer!r}")
    ok, payload = call(answer.payload)
    try:
        dealer.send(messages.Result(place, ok, payload))
    except ControlError as error:  # too large
        ok = False
        dealer.send(messages.Result(place, ok, _failed(error)))
    dealer.flush(timeout_s)  # the news of our end travels another way, and must not overtake a large result
    return 0 if ok else 1


def call(payload: bytes) -> tuple[bool, bytes]:
    """Unpickle and call; whatever goes wrong is a result too, and is printed as Python would."""
    try:
        task = msgspec.msgpack.decode(payload, type=Task)
        sys.path[:] = task.path
        func, args, kwargs = pickle.loads(task.call)  # noqa: S301 (from our launcher, over an authenticated channel)
        return True, cloudpickle.dumps(func(*args, **kwargs))
    except BaseException as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            error.__traceback__ = error.__traceback__.tb_next  # what happened in the function, without our call of it
        traceback.print_exception(error)
        return False, _failed(error)


def _failed(error: BaseException) -> bytes:
    summary = "".join(traceback.format_exception_only(error)).strip()
    text = "".join(traceback.format_exception(error))
    return msgspec.msgpack.encode(Failure(summary, text, _pickled(error), isinstance(error, AbortError)))


def _pickled(error: BaseException) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(error.with_traceback(None))
        pickle.loads(pickled)  # noqa: S301 (made in the line above)
    except Exception:
        return b""
    return pickled
