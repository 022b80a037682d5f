"""Script that runs beside or inside a cluster's hosts, with the standard library only, so that it starts at once.

    python -I -S namespaces.py switch OWNER              holds the switch's network and the cluster's files
    python -I -S namespaces.py host OWNER SWITCH NAME    a host: the first process of its namespaces, which runs sshd
    python -I -S namespaces.py enter HOST COMMAND...     runs a command in a host, as if it had been started there

``OWNER``, ``SWITCH`` and ``HOST`` are process numbers. Everything here ends with the owner, in any case: the first
process of a PID namespace takes all others with it, and the file systems end with the mount namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import NoReturn

NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_PIDS, NEW_NETWORK = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
NEW_EVERYTHING = NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_PIDS | NEW_NETWORK
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
PR_SET_PDEATHSIG = 1

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (a place to mount)
SHARED = Path("/run/cluster")
"""Files that all hosts of a cluster share: ``home`` of root, and ``etc``, which replaces files of each host."""

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """A system call by its C name; raises ``OSError``."""
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(source: str | Path, target: str | Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    """``mount(2)``."""
    call("mount", *(os.fsencode(text) or None for text in (source, target, kind)), flags, os.fsencode(options) or None)


def switch(owner: int) -> NoReturn:
    """Hold a network namespace for the bridge, and a file system for what hosts share, until the owner ends."""
    lifeline = _lifeline(owner)
    call("unshare", NEW_NETWORK | NEW_MOUNTS)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", SHARED_MEMORY, "tmpfs", options="mode=755")
    print("ready", os.getpid(), flush=True)
    _wait_for(lifeline)


def host(owner: int, switch: int, name: str) -> NoReturn:
    """Be a host; when all is set up, the first process of its namespaces prints its number as seen from outside."""
    lifeline = _lifeline(owner)
    call("setns", os.pidfd_open(switch), NEW_MOUNTS)
    call("unshare", NEW_EVERYTHING)
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        sys.exit()
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)  # at the parent's end; the lifeline is for the owner's
    seen_from_outside = os.readlink("/proc/self")  # this is still the machine's /proc
    _furnish(name)
    # Started before SIGCHLD is ignored, which it would inherit; no descriptor of the owner may stay open in a daemon.
    subprocess.run(["/usr/sbin/sshd", "-E", "/run/sshd.log"], stdin=subprocess.DEVNULL, stdout=2, check=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then reaps the orphans that a first process inherits
    print("ready", seen_from_outside, flush=True)
    _wait_for(lifeline)


def _furnish(name: str) -> None:
    """Set up what a host has of its own in this mount namespace: name, ``/run``, ``/dev/shm``, ``/etc``, identity."""
    socket.sethostname(name)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc")
    mount("sysfs", "/sys", "sysfs")  # the interfaces in /sys/class/net are those of the mounting process's namespace
    mount("tmpfs", "/run", "tmpfs", options="mode=755")
    SHARED.mkdir()
    mount(SHARED_MEMORY, SHARED, flags=MS_BIND)  # the switch keeps its files there
    mount("tmpfs", SHARED_MEMORY, "tmpfs", options="mode=1777")
    for folder in ("sshd", "lock"):
        Path("/run", folder).mkdir()
    for entry in (SHARED / "etc").iterdir():
        mount(entry, Path("/etc", entry.name), flags=MS_BIND)
    for text, place in (
        (name, "/etc/hostname"),
        (uuid.uuid4().hex, "/etc/machine-id"),
        (str(uuid.uuid4()), "/proc/sys/kernel/random/boot_id"),
    ):
        file = Path("/run", Path(place).name)
        file.write_text(f"{text}\n")
        with contextlib.suppress(FileNotFoundError):  # not every image has a machine-id
            mount(file, place, flags=MS_BIND)


def enter(pid: int, command: list[str]) -> NoReturn:
    """Run a command in the host whose first process is ``pid``: it gets this process's signals, and is killed with it.

    ``nsenter`` does neither. This process ends like the command, by the same signal if a signal killed it.
    """
    cwd = os.getcwd()
    call("setns", os.pidfd_open(pid), NEW_EVERYTHING)
    with contextlib.suppress(OSError):
        os.chdir(cwd)
    passed = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    child = os.fork()
    if not child:
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid():  # a parent outside has no number here: it has been killed, and we were adopted
            os._exit(1)
        os.setsid()  # else a signal to the group of this process would reach it twice
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _become(command)
    while True:
        number = signal.sigwait(passed)
        if number != signal.SIGCHLD:
            os.kill(child, number)  # reaped only below, so this number cannot be another process's yet
        elif os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            _end_like(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _become(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _end_like(code: int) -> NoReturn:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), -code)
    os._exit(code)


def _lifeline(owner: int) -> int:
    """Descriptor that becomes readable when the owner ends. A parent-death signal would depend on its thread."""
    descriptor = os.pidfd_open(owner)
    if os.getppid() != owner:
        sys.exit("the owner has ended")
    return descriptor


def _wait_for(lifeline: int) -> NoReturn:
    select.select([lifeline], [], [])
    sys.exit()


if __name__ == "__main__":
    verb, first, *rest = sys.argv[1:]
    if verb == "switch":
        switch(int(first))
    elif verb == "host":
        host(int(first), int(rest[0]), rest[1])
    else:
        enter(int(first), rest)
