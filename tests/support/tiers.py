"""Rules of the tiers of tests, kept while a test runs: who breaks one is told where the test belongs.

    tests/unit         no process, no socket, no framework; the clock is an argument
    tests/jobs         real ranks on this machine: at most 3, with NumPy alone; every wait is for an event
    tests/frameworks   jobs of at most 2 ranks with PyTorch, Keras, TensorFlow, JAX or MXNet
    tests/nightly      all else, by slices (``workbench.nightly``)

CONTRIBUTING.md says how a test comes into the gate, which is the first three.
"""

# What a test does is seen by an audit hook, which Python calls in whatever thread does it. It raises there, and keeps
# the sentence: a product's ``except`` may take the error for one of its own. The hook cannot be removed from a process,
# so it looks at ``_now.tier``, which is None between tests. ZeroMQ makes sockets in C, which is no event of Python's,
# and neither is a sleep before Python 3.13: these are wrapped, once.
#
# What it does not see: ranks that ``-H``, an MPI or ``farandole.run`` start, and waits for a lock, a thread or a
# descriptor until a time is over.

from __future__ import annotations

import enum
import functools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import zmq

from farandole.testing import leaks
from tests.support.paths import TESTS

FRAMEWORKS = frozenset({"jax", "keras", "mxnet", "optax", "tensorflow", "tf_keras", "torch"})
ELSEWHERE = frozenset(
    {"chromium", "ip", "iptables", "jupyter", "nsenter", "sbatch", "srun", "slurmctld", "slurmd", "ssh", "unshare"}
)
"""Commands of tests on several hosts, under Slurm, in a browser or in a notebook."""


@final
class Tier(enum.Enum):
    """Folder below ``tests/``, which says what a test may do."""

    UNIT = "unit"
    JOBS = "jobs"
    FRAMEWORKS = "frameworks"
    NIGHTLY = "nightly"

    @property
    def most_ranks(self) -> int | None:
        """Largest job; None where there is no limit."""
        return {Tier.UNIT: 0, Tier.JOBS: 3, Tier.FRAMEWORKS: 2}.get(self)


@final
class WrongTierError(AssertionError):
    """A test did what its tier rules out."""


def tier_of(path: Path) -> Tier:
    """The tier of a test's file; raises ``ValueError`` for one that lies in none."""
    parts = path.relative_to(TESTS).parts
    if parts[0] in {each.value for each in Tier} and len(parts) > (2 if parts[0] == Tier.NIGHTLY.value else 1):
        return Tier(parts[0])
    raise ValueError(
        f"tests/{'/'.join(parts)} lies in no tier: move it to tests/unit (no process, no socket), tests/jobs (ranks "
        "with NumPy), tests/frameworks (2 ranks with a framework) or tests/nightly/SLICE (all else)"
    )


@final
class _Held:
    """What runs now: held to which tier's rules, and what it broke."""

    tier: Tier | None = None
    broken: list[str] = []  # noqa: RUF012 (one for the process)
    is_more_than_unit = False
    loaded: frozenset[str] = frozenset()


_now = _Held()


def enter(tier: Tier) -> None:
    """Hold what runs from now on to the rules of ``tier``."""
    _install()
    _now.broken.clear()
    _now.loaded = FRAMEWORKS & sys.modules.keys()
    _now.tier = tier


def leave() -> list[str]:
    """Hold nobody to anything; returns what was broken since ``enter``, in words."""
    if _now.tier in (Tier.UNIT, Tier.JOBS) and (new := FRAMEWORKS & sys.modules.keys() - _now.loaded):
        _now.broken.append(_sentence(f"import {', '.join(sorted(new))}", "tests/frameworks"))
    _now.tier = None
    broken = list(dict.fromkeys(_now.broken))
    _now.broken.clear()
    return broken


def needs_its_tier() -> bool:
    """Whether anything was done since this was asked last that a unit test must not do."""
    found, _now.is_more_than_unit = _now.is_more_than_unit, False
    return found


def _refuse(what: str, where: str) -> None:
    sentence = _sentence(what, where)
    _now.broken.append(sentence)
    raise WrongTierError(sentence)


def _sentence(what: str, where: str) -> str:
    assert _now.tier is not None
    return f"a test in tests/{_now.tier.value} must not {what}: it belongs in {where}"


def _process(command: object) -> None:
    if _now.tier is Tier.UNIT:
        _refuse(f"start a process ({command})", "tests/jobs")


def _popen(_: object, arguments: Sequence[Any], __: object, environment: Mapping[str, str] | None) -> None:
    words = [os.fsdecode(word) for word in ([arguments] if isinstance(arguments, (str, bytes)) else arguments)]
    _process(" ".join(words[:4]))
    found = shutil.which(words[0], path=(environment or os.environ).get("PATH")) if words else None
    is_real = found is not None and found.startswith("/usr/")  # and no stand-in
    if is_real and _now.tier in (Tier.JOBS, Tier.FRAMEWORKS) and (name := os.path.basename(words[0])) in ELSEWHERE:
        _refuse(f"run {name}", "tests/nightly/SLICE")
    if "-np" in words[:-1] and words[words.index("-np") + 1].isdecimal():
        _ranks(int(words[words.index("-np") + 1]))


def _ranks(number: int) -> None:
    assert _now.tier is not None
    if _now.tier is Tier.UNIT:
        _refuse("start ranks", "tests/jobs")
    if _now.tier.most_ranks is not None and number > _now.tier.most_ranks:
        _refuse(f"start {number} ranks, more than {_now.tier.most_ranks}", "tests/nightly/SLICE")


def _socket(*_: object) -> None:
    if _now.tier is Tier.UNIT:
        _refuse("open a socket", "tests/jobs")


def _imported(module: str, *_: object) -> None:
    if module in FRAMEWORKS and _now.tier in (Tier.UNIT, Tier.JOBS):
        _refuse(f"import {module}", "tests/frameworks")


_RULES: dict[str, Callable[..., None]] = {
    "subprocess.Popen": _popen,
    "os.fork": lambda: _process("os.fork"),
    "os.forkpty": lambda: _process("os.forkpty"),
    "os.posix_spawn": lambda path, *_: _process(path),
    "os.system": _process,
    "socket.__new__": _socket,
    "import": _imported,
    "farandole.testing.ranks": _ranks,
}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _now.tier is not None and (rule := _RULES.get(event)):
        _now.is_more_than_unit |= event != "import" or arguments[0] in FRAMEWORKS
        rule(*arguments)


def _sleep(seconds: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
    caller = sys._getframe(1).f_code.co_filename
    if caller == leaks.__file__:  # after the test, until the kernel has removed the threads that have ended
        return sleep(seconds)
    _now.is_more_than_unit = True
    if _now.tier is Tier.UNIT or (
        _now.tier in (Tier.JOBS, Tier.FRAMEWORKS) and caller.startswith(str(TESTS / _now.tier.value))
    ):
        _refuse("sleep", "tests/nightly/SLICE, or wait for an event")
    return sleep(seconds)


def _condition_wait(
    self: threading.Condition,
    timeout: float | None = None,
    *,
    wait: Callable[..., bool] = threading.Condition.wait,
) -> bool:
    """A limit may be there, and be met by none: who waits until it is over waits on the real clock."""
    notified = wait(self, timeout)
    _now.is_more_than_unit |= not notified
    if _now.tier is Tier.UNIT and not notified and timeout:
        _refuse(f"wait until {timeout:g} s are over", "tests/jobs, or has to have the clock as an argument")
    return notified


@functools.cache
def _install() -> None:
    sys.addaudithook(_audit)
    time.sleep = _sleep  # type: ignore[assignment]
    threading.Condition.wait = _condition_wait  # type: ignore[method-assign]
    make = zmq.Context.socket

    @functools.wraps(make)
    def socket(self: Any, *args: Any, **options: Any) -> Any:
        sys.audit("socket.__new__")
        return make(self, *args, **options)

    zmq.Context.socket = socket  # type: ignore[method-assign]
