"""Processes and their trees: started so that they cannot outlive us, ended with all their descendants, and described.

    adopt_orphans()
    spawn(["bash", "train.sh"], stdout=write_end, death_signal=signal.SIGKILL)
    signal_descendants(signal.SIGTERM)               # the child, or, if it knows no better, its children, too
    for pid, code in reap(): print(describe(code))  # "exited with code 3", "was killed by SIGSEGV"

Linux only: parent-death signals, child subreapers and ``/proc`` are what makes the promises hold.

No threads are made here, but other processes and signals run between any two lines:

- A parent may die between ``fork`` and the ``prctl`` by which its child asks for a signal at its death. So the child
  looks, after ``prctl``, whether its parent is still the one that it was forked by (``_bound_to``, ``_BOUND``).
- That signal comes when the *thread* that forked ends, not its process: only a thread that lives as long as the process
  may ``spawn`` with a ``death_signal``, ``fork``, or start what is ``bound``.
- After ``fork`` a child has one thread, and every lock as it was: if another thread had one, nobody gives it back. So
  Python runs in a child (``preexec_fn``, ``fork``) only where no other threads are; elsewhere ``bound`` starts an
  interpreter of its own for it.
- ``/proc`` is read name by name while processes fork and end. What is found there may be gone, and what was forked
  meanwhile is missing: who must get them all looks again until nothing is left.
- A number may be given to another process once its process has been reaped. Children keep theirs until we reap them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from farandole.errors import ControlError

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a user wants an end."""

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""To workers that handle them: schedulers announce the end of a job by these, or ask for a checkpoint."""

TRACKERS_S = 10.0
"""Time for Python's resource trackers to remove what killed processes have left, before they are killed, too."""

_SHELLS = ("bash", "busybox", "dash", "ksh", "mksh", "sh", "zsh")

_TRACKER = b"from multiprocessing.resource_tracker import main"
_STAGER = b"from farandole.data.staging.stager_process import main"

STDERR = 2
NOT_EXECUTABLE = 126
NOT_FOUND = 127

_libc = ctypes.CDLL(None, use_errno=True)

_BOUND = f"""\
import ctypes, os, sys
number, parent, *command = sys.argv[1:]
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, int(number))
if os.getppid() == int(parent):
    os.execvp(command[0], command)
"""
"""The program that ``bound`` puts before a command; it ends at once if the parent died before the kernel knew."""


@contextlib.contextmanager
def signals_as_bytes(numbers: Iterable[int]) -> Iterator[int]:
    """A descriptor that gets a byte for each of these signals, so that one call can wait for everything.

    Signals that are ignored already (``nohup``, a job in the background of a script) stay ignored. Main thread only.
    """
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)  # the writer, too: a signal must not wait for room in it
    # A full pipe loses bytes, not news: it is readable, and who reads it looks at everything that may have happened.
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    # Handlers that do nothing: without any the default action would end us, and no byte would be written.
    handlers = {number: signal.signal(number, lambda *_: None) for number in heard}
    try:
        yield reader
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)  # before the pipe is closed: its number may soon be another file's
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def no_descendants_left() -> Iterator[set[int]]:
    """Kill, at the end of the block, every descendant that came during it, wherever it may have hidden.

    Resource trackers get their time, see ``trackers``. A shell that became this program may have left it children;
    these and what they start are nobody's business here. The block gets their numbers, and may add those of children
    that are to outlive this process.
    """
    others = set(descendants())
    adopt_orphans()
    try:
        yield others
    finally:
        spared_until_s = time.monotonic() + TRACKERS_S
        while left := set(descendants(but=others)):  # again: they may have forked before they were killed
            spared = trackers(left) if time.monotonic() < spared_until_s else set()
            kill(left - spared)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG if spared else 0)  # one, at least, is our child; what it leaves becomes so
            if spared:
                time.sleep(0.005)  # they end by themselves, and perhaps never


def open_standard_streams() -> None:
    """Give a process that was started without some standard stream ``/dev/null``, before others take its number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none can slip away."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_descendants(limit_s: float) -> None:
    """Kill every descendant, again until none is left or ``limit_s`` is over: some the kernel does not let die.

    It reaps them, and gives resource trackers their time, see ``trackers``. For a process that has adopted orphans, and
    has nobody else to wait for them.
    """
    until_s = time.monotonic() + limit_s
    spared_until_s = time.monotonic() + min(limit_s, TRACKERS_S)
    while has_children():
        left = set(descendants())
        kill(left - trackers(left) if time.monotonic() < spared_until_s else left)
        deque(reap(), maxlen=0)
        if time.monotonic() > until_s:
            return
        time.sleep(0.005)  # what is killed takes a moment to end, and its children are ours only then


def spawn(
    command: Sequence[str],
    *,
    death_signal: int | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> int:
    """Start ``command`` in a session of its own; returns its process number, for ``reap`` or ``os.waitpid``.

    The kernel sends it ``death_signal``, if given, when the calling thread ends; give it only where no other threads
    run (it takes a fork). Raises ``OSError`` as ``subprocess`` does.
    """
    child = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=None if environment is None else dict(environment),
        cwd=cwd or None,
        start_new_session=True,
        preexec_fn=_bound_to(os.getpid(), death_signal) if death_signal else None,  # noqa: PLW1509 (no threads yet)
    )
    # So that the caller may reap it: subprocess reaps children whose end it was not told of when it starts others.
    child.returncode = 0
    return child.pid


def fork(run: Callable[[], object], keep: Collection[int], death_signal: int) -> int:
    """A child that calls ``run``, in a session of its own; returns its process number, for ``os.waitpid``.

    Of our descriptors it has the standard streams and those it is to ``keep``, and nobody must close others there. It
    exits with status 0, or, having said what ``run`` raised, with 1; of ``SystemExit`` its words are all that is said.
    Only where no other threads run.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _bound_to(parent, death_signal)()
        os.setsid()
        signal.set_wakeup_fd(-1)  # the pipe is the parent's, which would take our signals for its own
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > STDERR and fd not in keep:
                with contextlib.suppress(OSError):  # the one that lists them
                    os.close(fd)
        run()
        status = 0
    except SystemExit as error:  # as all else, not to get into the frames of the parent, of which this is a copy
        print(error, file=sys.stderr, flush=True)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # no exit handlers and no flushing: what is registered and buffered is the parent's


def bound(command: Sequence[str], death_signal: int, environment: Mapping[str, str], cwd: str = "") -> list[str]:
    """A command that gets ``death_signal`` when this process ends, for ``spawn`` where other threads run.

    It costs the start of an interpreter. Raises ``OSError`` for what could not be started.
    """
    name = command[0]
    file = os.path.join(cwd, name) if "/" in name else name
    if shutil.which(file, path=environment.get("PATH")) is None:
        number = errno.EACCES if "/" in name and os.path.exists(file) else errno.ENOENT  # a folder, too, as for exec
        raise OSError(number, os.strerror(number), name)
    return [sys.executable, "-I", "-S", "-c", _BOUND, f"{death_signal:d}", str(os.getpid()), *command]


def descendants(pid: int | None = None, but: Collection[int] = ()) -> list[int]:
    """All living descendants of ``pid`` (default: this process), parents before children; none below one of ``but``."""
    return _below(os.getpid() if pid is None else pid, but, lambda _: True)


def _below(pid: int, but: Collection[int], goes_on: Callable[[int], bool]) -> list[int]:
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        if child in but:
            continue
        children.setdefault(parent, []).append(child)
    found = list(children.get(pid, ()))
    for one in found:
        found.extend(children.get(one, ()) if goes_on(one) else ())
    return found


def trackers(pids: Iterable[int]) -> set[int]:
    """Resource trackers of Python's ``multiprocessing`` among these processes.

    One removes named semaphores and shared memory of processes that were killed, and ends with the last of these. Who
    kills it as well leaves them behind for ever. A process that is just beginning its program has no command line yet:
    it counts as one for that moment.
    """
    lines = ((pid, _command_line(pid)) for pid in pids)
    return {pid for pid, line in lines if not line or _TRACKER in line}


def stagers(pids: Iterable[int]) -> set[int]:
    """Stagers of data sets among these processes: each serves all workers of its host, and outlives who started it."""
    return {pid for pid in pids if _STAGER in _command_line(pid)}


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


def name_this(name: str) -> None:
    """Set the name of the calling process that ``ps`` shows; the kernel takes fifteen characters."""
    _prctl(PR_SET_NAME, name.encode())


def die_with_parent(number: int) -> None:
    """Let the kernel send this process signal ``number`` when the thread that started it ends."""
    _prctl(PR_SET_PDEATHSIG, number)


def signal_descendants(number: int, but: Collection[int] = ()) -> None:
    """Send a signal to the descendants of this process, but none to those below one that has a say in it.

    What handles the signal, or ignores it, needs its children until it ends: a worker the processes that load its data.
    None is sent to ``but`` and what is below.
    """
    kill(_below(os.getpid(), but, lambda pid: not _has_a_say(pid, number)), number)


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to those of these processes that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def signal_handlers(pids: Iterable[int], number: int) -> None:
    """Send a signal to each of these processes, or, as far as they have no handler, to the next below that do.

    A shell around a script would die of it, and so would a script that knows nothing of it.
    """
    for pid in pids:
        if _has(pid, number, "SigCgt"):
            kill([pid], number)
        else:
            signal_handlers([child for child, parent in _parents() if parent == pid], number)


def reap() -> Iterator[tuple[int, int]]:
    """The children that have ended, each with its exit status or minus the signal's number. Never blocks."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def has_children() -> bool:
    """True while a child is alive or not yet reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # a look: its status is left for `reap`
    except ChildProcessError:
        return False
    return True


def describe(code: int) -> str:
    """The end of a process in words, to be put after its name.

    >>> describe(3), describe(-9)
    ('exited with code 3', 'was killed by SIGKILL')
    """
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


def exit_status(code: int) -> int:
    """The status that a shell makes of ``code``: 128 and the signal's number for a process that was killed."""
    return code if code >= 0 else 128 - code


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals and unknown ones by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def refusal(command: Sequence[str], error: OSError) -> tuple[int, str]:
    """The exit status of a shell, and the words, for a command that could not be started."""
    name = command[0]
    if isinstance(error, (PermissionError, IsADirectoryError)) or error.errno == errno.ENOEXEC:
        without_line = f"sh {name}, or begin it with the line #!/bin/sh"
        by_hand = without_line if error.errno == errno.ENOEXEC else f"chmod +x {name}"
        hint = f"python {name}" if name.endswith(".py") else by_hand
        return NOT_EXECUTABLE, f"{name} is not executable; type: {hint}"
    if isinstance(error, FileNotFoundError):
        if error.filename not in (None, name):
            return NOT_EXECUTABLE, f"{name} cannot be started: there is no {error.filename}"
        if os.access(name, os.X_OK):
            return NOT_EXECUTABLE, f"{name} cannot be started: the interpreter its first line names does not exist"
        hint = f"; type: python {name}" if os.path.exists(name) else ""
        return NOT_FOUND, f"{name} was not found, neither as a file nor on the PATH{hint}"
    return NOT_EXECUTABLE, f"{name} cannot be started: {error}"


def dump_stack(pid: int, number: int, fd: int, deadline_s: float = 2.0, quiet_s: float = 0.1) -> str:
    """The text a process writes to its descriptor ``fd`` when signal ``number`` comes (see ``runtime/session/stacks``).

    Works while the process computes, waits or holds the GIL: where its main thread stays in C code, the signal before
    is sent, too. Raises ``ControlError`` if nothing comes in time.
    """
    try:
        with open(f"/proc/{pid}/fd/{fd}", "rb") as file:
            before = file.seek(0, os.SEEK_END)  # earlier stacks are there, too; this position is ours, not the writer's
            size, until_s = partial(_size, file.fileno()), time.monotonic() + deadline_s
            os.kill(pid, number)
            if _stays_in_c(pid, size, before, until_s):
                _kill_main_thread(pid, number - 1)
            _until_quiet(size, before, max(quiet_s, until_s - time.monotonic()), quiet_s)
            return file.read().decode(errors="replace")
    except OSError as error:
        raise ControlError(f"no stack of process {pid}: {error.strerror}") from error


def _size(fd: int) -> int:
    return os.fstat(fd).st_size


def _stays_in_c(pid: int, size: Callable[[], int], before: int, until_s: float) -> bool:
    """True if the main thread sleeps, or has computed for so long that it is not in Python code; false if it answers.

    A thread that waits for a processor or for its turn in Python does neither, and may be anywhere.
    """
    settled_s = time.monotonic() + _SETTLED_S
    _, first = _main_thread(pid)
    while size() == before and (now := time.monotonic()) < until_s:
        is_asleep, ticks = _main_thread(pid)
        if (is_asleep and now >= settled_s) or ticks - first >= _TICKS_IN_C:
            return True
        time.sleep(0.005)
    return False


_SETTLED_S = 0.05
"""Time after which a thread that sleeps has taken in a signal that woke it."""

_TICKS_IN_C = 6
"""Hundredths of a second: Python code heeds a signal within much less."""


def _main_thread(pid: int) -> tuple[bool, int]:
    """Whether the main thread of a process sleeps, and how long it has computed, in the kernel's ticks."""
    with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return fields[0] in (b"S", b"D"), int(fields[11]) + int(fields[12])


def _kill_main_thread(pid: int, number: int) -> None:
    """Signal the main thread: the kernel gives one for the process to another, while the first is yet to be handled."""
    tgkill = getattr(_libc, "tgkill", None)
    if tgkill is None:  # before glibc 2.30
        os.kill(pid, number)
    elif tgkill(pid, pid, number):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _until_quiet(size: Callable[[], int], before: int, deadline_s: float, quiet_s: float) -> None:
    """Wait until ``size`` has grown past ``before`` and stopped growing; the kernel offers no event for that."""
    deadline = time.monotonic() + deadline_s
    seen, since = before, time.monotonic()
    while (now := time.monotonic()) < deadline:
        if (new := size()) != seen:
            seen, since = new, now
        elif seen > before and now - since >= quiet_s:
            return
        time.sleep(0.005)
    if seen == before:
        raise ControlError(f"the process wrote no stack within {deadline_s:g} s; is it stopped?")


def _has_a_say(pid: int, number: int) -> bool:
    """True if the process decides what the signal does to its children; a shell runs its trap when these have ended."""
    with contextlib.suppress(OSError):
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _SHELLS:
            return False
    return _has(pid, number, "SigCgt") or _has(pid, number, "SigIgn")


def _has(pid: int, number: int, field: str) -> bool:
    """True if the process catches (``SigCgt``), or ignores (``SigIgn``), the signal: a bit in ``/proc``, from 1."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        bits = next((line.split()[1] for line in file if line.startswith(f"{field}:")), "0")
        return bool(int(bits, 16) >> (number - 1) & 1)
    return False


def _parents() -> Iterator[tuple[int, int]]:
    """Every process with its parent. Zombies are left out: they need reaping, not ending."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b") ")[2].split(b" ", 2)[:2]
                if state != b"Z":
                    yield int(name), int(parent)


def _bound_to(parent: int, death_signal: int) -> Callable[[], None]:
    def prepare() -> None:
        die_with_parent(death_signal)
        if os.getppid() != parent:  # it died before the kernel knew
            os._exit(1)

    return prepare


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
