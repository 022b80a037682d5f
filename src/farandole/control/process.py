"""Processes and process trees: start them bound to the parent's life, end them with all descendants, describe ends.

    adopt_orphans()
    spawn(["bash", "train.sh"], stdout=write_end, death_signal=signal.SIGKILL)
    signal_descendants(signal.SIGTERM)               # the child, and, unless it handles the signal, its children
    for pid, code in reap(): print(describe(code))  # "exited with code 3", "was killed by SIGSEGV"

Linux only: it relies on parent-death signals, child subreapers and ``/proc``.

This module starts no threads, but other processes and signals run between any two lines:

- A parent may die between ``fork`` and the ``prctl`` by which its child requests a parent-death signal. So after
  ``prctl`` the child checks that its parent is still the process that forked it (``_bound_to``, ``_BOUND``).
- The kernel sends that signal when the *thread* that forked ends, not its process: only a thread that lives as long as
  the process may ``spawn`` with a ``death_signal``, or start a ``bound`` command.
- After ``fork`` a child has one thread, and every lock in its old state: a lock that another thread held is never
  released. So Python code runs in a child (``preexec_fn``) only if the parent has no other threads; otherwise
  ``bound`` starts a separate interpreter for it.
- ``/proc`` is read name by name while processes fork and exit. A process found there may have exited, and a process
  forked meanwhile is missing: a caller that must get all of them repeats the search until nothing is left.
- The kernel may reuse a process ID once its process has been reaped. Children keep theirs until we reap them.
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
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from farandole.errors import ControlError

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a user asks for the end."""

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals forwarded to workers that handle them: schedulers use them to announce the end of a job or a checkpoint."""

TRACKERS_S = 10.0
"""Time for Python's resource trackers to clean up after killed processes, before the trackers are killed, too."""

_SHELLS = ("bash", "busybox", "dash", "ksh", "mksh", "sh", "zsh")

_TRACKER = b"from multiprocessing.resource_tracker import main"
_STAGER = b"from farandole.data.staging.stager_process import main"

STDERR = 2
NOT_EXECUTABLE = 126
NOT_FOUND = 127

_libc = ctypes.CDLL(None, use_errno=True)

_BOUND = f"""\
import _signal, ctypes, os, sys
number, parent, *command = sys.argv[1:]
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, int(number))
if os.getppid() == int(parent):
    for ignored in _signal.SIGPIPE, _signal.SIGXFSZ:  # by the interpreter, and so by what it executes
        _signal.signal(ignored, _signal.SIG_DFL)
    os.execvp(command[0], command)
"""
"""Program that ``bound`` puts before a command; it exits at once if the parent died before ``prctl``."""


@contextlib.contextmanager
def signals_as_bytes(numbers: Iterable[int]) -> Iterator[int]:
    """Descriptor that receives a byte for each of these signals, so that one ``poll`` can wait for everything.

    Signals that are already ignored (``nohup``, a background job of a script) stay ignored. Main thread only.
    """
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)  # the writer, too: a signal must not block on a full pipe
    # A full pipe loses bytes but no event: it stays readable, and the reader then checks everything anyway.
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    # Empty handlers: without a handler the default action would end this process, and no byte would be written.
    handlers = {number: signal.signal(number, lambda *_: None) for number in heard}
    try:
        yield reader
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)  # before the pipe is closed: its descriptor number may be reused
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def no_descendants_left() -> Iterator[set[int]]:
    """Kill, at the end of the block, every descendant that was started during the block.

    Resource trackers get time to finish, see ``trackers``. A shell that executed this program may have left it
    children; these and their descendants are spared. The block receives the set of their process IDs, and may add
    children that outlive this process.
    """
    others = set(descendants())
    adopt_orphans()
    try:
        yield others
    finally:
        spared_until_s = time.monotonic() + TRACKERS_S
        while left := set(descendants(but=others)):  # repeated: they may have forked before they were killed
            spared = trackers(left) if time.monotonic() < spared_until_s else set()
            kill(left - spared)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG if spared else 0)  # at least one is a child of ours; we adopt its orphans
            if spared:
                time.sleep(0.005)  # trackers end by themselves, or not at all


def open_standard_streams() -> None:
    """Open ``/dev/null`` for each missing standard stream, before another file gets its descriptor number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (child subreaper)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_descendants(limit_s: float) -> None:
    """Kill and reap every descendant, repeatedly, until none is left or ``limit_s`` is over (some cannot be killed).

    Resource trackers get time to finish, see ``trackers``. For a process that has adopted orphans and has no other code
    that reaps them.
    """
    until_s = time.monotonic() + limit_s
    spared_until_s = time.monotonic() + min(limit_s, TRACKERS_S)
    while has_children():
        left = set(descendants())
        kill(left - trackers(left) if time.monotonic() < spared_until_s else left)
        deque(reap(), maxlen=0)
        if time.monotonic() > until_s:
            return
        time.sleep(0.005)  # a killed process takes a moment to end, and only then are its children ours


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
    """Start ``command`` in a session of its own; returns its process ID, for ``reap`` or ``os.waitpid``.

    The kernel sends it ``death_signal``, if given, when the calling thread ends; pass it only where no other threads
    run (it needs a fork). Raises ``OSError`` like ``subprocess``.
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
    # So that the caller may reap it: subprocess, when it starts a process, reaps children without a return code.
    child.returncode = 0
    return child.pid


def bound(command: Sequence[str], death_signal: int, environment: Mapping[str, str], cwd: str = "") -> list[str]:
    """Wrap a command so that it gets ``death_signal`` when this process ends, for ``spawn`` where other threads run.

    It costs the start of an interpreter. Raises ``OSError`` for a command that cannot be started.
    """
    name = command[0]
    file = os.path.join(cwd, name) if "/" in name else name
    if shutil.which(file, path=environment.get("PATH")) is None:
        number = errno.EACCES if "/" in name and os.path.exists(file) else errno.ENOENT  # EACCES for folders, like exec
        raise OSError(number, os.strerror(number), name)
    return [sys.executable, "-I", "-S", "-c", _BOUND, f"{death_signal:d}", str(os.getpid()), *command]


def descendants(pid: int | None = None, but: Collection[int] = ()) -> list[int]:
    """All living descendants of ``pid`` (default: this process), parents first; without ``but`` and all below those."""
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

    A tracker removes named semaphores and shared memory of killed processes, and exits with the last of these
    processes. If the tracker is killed, they are never removed. A process that is just executing its program has no
    command line yet and counts as a tracker for that moment.
    """
    lines = ((pid, _command_line(pid)) for pid in pids)
    return {pid for pid, line in lines if not line or _TRACKER in line}


def stagers(pids: Iterable[int]) -> set[int]:
    """Data-set stagers among these processes: each serves all workers of its host, and outlives its parent."""
    return {pid for pid in pids if _STAGER in _command_line(pid)}


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


def name_this(name: str) -> None:
    """Set the name of the calling process that ``ps`` shows; the kernel keeps fifteen characters."""
    _prctl(PR_SET_NAME, name.encode())


def die_with_parent(number: int) -> None:
    """Let the kernel send this process signal ``number`` when the thread that started it ends."""
    _prctl(PR_SET_PDEATHSIG, number)


def signal_descendants(number: int, but: Collection[int] = ()) -> None:
    """Signal the descendants of this process, except those below a descendant that handles or ignores the signal.

    Such a process needs its children until it ends: a worker needs its data-loading processes. ``but`` and all
    processes below them get no signal.
    """
    kill(_below(os.getpid(), but, lambda pid: not _has_a_say(pid, number)), number)


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to these processes; skip those that no longer exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def signal_handlers(pids: Iterable[int], number: int) -> None:
    """Signal each process that handles ``number``; otherwise its nearest descendants that handle it.

    A wrapper shell, or a script, without a handler would be killed by the signal.
    """
    for pid in pids:
        if _has(pid, number, "SigCgt"):
            kill([pid], number)
        else:
            signal_handlers([child for child, parent in _parents() if parent == pid], number)


def reap() -> Iterator[tuple[int, int]]:
    """Reap the children that have ended; yields each with its exit status or minus the signal number. Never blocks."""
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
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # WNOWAIT: the status stays for `reap`
    except ChildProcessError:
        return False
    return True


def describe(code: int) -> str:
    """Describe the end of a process in words that follow its name.

    >>> describe(3), describe(-9)
    ('exited with code 3', 'was killed by SIGKILL')
    """
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


def exit_status(code: int) -> int:
    """Exit status that a shell reports for ``code``: 128 plus the signal number for a killed process."""
    return code if code >= 0 else 128 - code


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals and unknown ones by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def refusal(command: Sequence[str], error: OSError) -> tuple[int, str]:
    """Exit status (as of a shell) and error text for a command that could not be started."""
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
    """Get the stack that a process writes to its descriptor ``fd`` on signal ``number`` (``session/tracebacks``).

    Works while the process computes, waits or holds the GIL: if its main thread stays in C code, signal ``number - 1``
    is sent, too. Raises ``ControlError`` if the process writes nothing in time.
    """
    try:
        with open(f"/proc/{pid}/fd/{fd}", "rb") as file:
            before = file.seek(0, os.SEEK_END)  # skip earlier stacks; the position is ours, separate from the writer's
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
    """True if the main thread sleeps, or has used so much CPU that it is not in Python code; false if it answers.

    A thread that waits for a processor or for the GIL does neither, and nothing is known about it.
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
"""Time after which a sleeping thread has handled a signal that woke it."""

_TICKS_IN_C = 6
"""Hundredths of a second of CPU time; Python code handles a signal within much less."""


def _main_thread(pid: int) -> tuple[bool, int]:
    """State of a process's main thread: whether it sleeps, and its CPU time in kernel ticks."""
    with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return fields[0] in (b"S", b"D"), int(fields[11]) + int(fields[12])


def _kill_main_thread(pid: int, number: int) -> None:
    """Signal the main thread; a signal to the process could go to another thread while the first one is pending."""
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
    """True if the process handles or ignores the signal; false for a shell, which runs traps after its children."""
    with contextlib.suppress(OSError):
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _SHELLS:
            return False
    return _has(pid, number, "SigCgt") or _has(pid, number, "SigIgn")


def _has(pid: int, number: int, field: str) -> bool:
    """True if the process catches (``SigCgt``) or ignores (``SigIgn``) the signal, by its bit mask in ``/proc``."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        bits = next((line.split()[1] for line in file if line.startswith(f"{field}:")), "0")
        return bool(int(bits, 16) >> (number - 1) & 1)
    return False


def _parents() -> Iterator[tuple[int, int]]:
    """Yield every process with its parent. Zombies are left out: they need reaping, not killing."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b") ")[2].split(b" ", 2)[:2]
                if state != b"Z":
                    yield int(name), int(parent)


def _bound_to(parent: int, death_signal: int) -> Callable[[], None]:
    def prepare() -> None:
        die_with_parent(death_signal)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)

    return prepare


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
