"""Stand-in for the command ``flux``, whose jobs are processes of this host: ``python fake_flux.py FOLDER submit ...``.

It has what ``FluxProvider`` uses of Flux, as the manual pages of flux-core say it: flux-submit(1) prints the id of the
job in F58, hands on the environment, changed by ``--env-file``, and gives 128 plus the number of a signal as the
status; flux-cancel(1) sends SIGTERM, and SIGKILL after 5 s; flux-jobs(1) formats ``id.f58``, ``state``, ``returncode``
and ``exception.note``, with ``:h`` for a hyphen instead of nothing; flux-job(1) ``hostpids`` prints ``host:pid``. A
command that cannot start is an exception with a note, as tests of flux-core (t2608-job-shell-log.t) have it.

A job is a folder with the files ``shell`` (pid of the process that starts and reaps the task, as flux-shell(1) does),
``state``, ``arguments`` and ``output``. Limits: one host, no queue, no resources, and only those options.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import string
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
KILL_TIMEOUT_S = 5.0
OPTIONS = ("--ntasks", "--cores-per-task", "--gpus-per-task", "--job-name", "--queue", "--time-limit")
"""Options of flux-submit(1) that are accepted and change nothing here."""


def fail(command: str, text: str) -> int:
    print(f"flux-{command}: ERROR: {text}", file=sys.stderr)
    return 1


# -- jobs -------------------------------------------------------------------------------------------------------------


def new_job(folder: Path) -> Path:
    """Make the folder of a job, whose name is its id."""
    number, digits = time.time_ns() // 1000, ""
    while number:
        number, digit = divmod(number, 58)
        digits = BASE58[digit] + digits
    job = folder / f"f{digits}"
    try:
        job.mkdir(parents=True)
    except FileExistsError:
        return new_job(folder)
    return job


def set_state(job: Path, state: str, code: str = "", note: str = "", pid: int = 0) -> None:
    (job / "new").write_text(f"{state}\n{code}\n{note}\n{pid}\n")
    (job / "new").rename(job / "state")


def job_of(folder: Path, jobid: str) -> tuple[Path, str, str, str, str]:
    """Folder, state, return code, note and pid of a job. Raises ``FileNotFoundError`` for one that is not there."""
    job = folder / jobid.replace("ƒ", "f", 1)
    state, code, note, pid = (job / "state").read_text().splitlines()
    return job, state, code, note, pid


def environment(rules: str) -> dict[str, str]:
    """This process's environment, after ENV RULES of the form ``VAR=VAL``."""
    found = dict(os.environ)
    for rule in rules.splitlines():
        name, value = rule.strip().split("=", 1)
        found[name] = string.Template(value).substitute(found)
    return found


# -- commands ---------------------------------------------------------------------------------------------------------


def submit(folder: Path, words: list[str]) -> int:
    parser = argparse.ArgumentParser("flux submit")
    for option in OPTIONS:
        parser.add_argument(option)
    parser.add_argument("--requires", default=f"host:{socket.gethostname()}")
    parser.add_argument("--env-file", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    if asked.requires != f"host:{socket.gethostname()}":
        return fail("submit", f"[Errno 22] unsatisfiable request: {asked.requires}")
    variables = environment(asked.env_file.read_text() if asked.env_file else "")
    job = new_job(folder)
    (job / "arguments").write_text("\n".join(words))
    set_state(job, "SCHED")
    # They stay pending in the shell until it waits for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    shell = [sys.executable, __file__, str(folder), "shell", job.name, *asked.command]
    with (job / "output").open("wb") as file:
        variables["FLUX_JOB_ID"] = job.name
        process = subprocess.Popen(
            shell, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    (job / "shell").write_text(str(process.pid))
    process.returncode = 0  # it outlives this process, which must not warn of that
    print(job.name.replace("f", "ƒ", 1))
    return 0


def shell(folder: Path, words: list[str]) -> int:
    """Run the task of a job; not a command of users."""
    job, command = folder / words[0], words[1:]
    try:
        pid = os.posix_spawnp(command[0], command, os.environ, setsid=True, setsigmask=())
    except OSError as error:
        note = f"task 0 (host {socket.gethostname()}): start failed: {command[0]}: {error.strerror}"
        set_state(job, "INACTIVE", "127" if isinstance(error, FileNotFoundError) else "126", note)
        return 1
    set_state(job, "RUN", pid=pid)
    limit_s = None
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if limit_s is None:
            number = signal.sigwait({signal.SIGTERM, signal.SIGCHLD})
        else:
            left_s = max(0.0, limit_s - time.monotonic())
            found = signal.sigtimedwait({signal.SIGTERM, signal.SIGCHLD}, left_s)
            number = signal.SIGKILL if found is None else found.si_signo
        if number != signal.SIGCHLD:
            limit_s = limit_s or time.monotonic() + KILL_TIMEOUT_S
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)
    code = os.waitstatus_to_exitcode(ended[1])
    set_state(job, "INACTIVE", str(code if code >= 0 else 128 - code), pid=pid)
    return 0


def cancel(folder: Path, words: list[str]) -> int:
    failed = 0
    for jobid in words:
        try:
            job, state, *_ = job_of(folder, jobid)
            if state == "INACTIVE":
                failed |= fail("cancel", f"{jobid}: job is inactive")
            else:
                os.kill(int((job / "shell").read_text()), signal.SIGTERM)
        except (FileNotFoundError, ProcessLookupError):
            failed |= fail("cancel", f"{jobid}: unknown job id")
    return failed


@final
class Formatter(string.Formatter):
    """Format of flux-jobs(1), with the presentation type ``h``."""

    def format_field(self, value: Any, spec: str) -> str:
        return ("-" if value == "" else str(value)) if spec == "h" else str(super().format_field(value, spec))


def jobs(folder: Path, words: list[str]) -> int:
    parser = argparse.ArgumentParser("flux jobs")
    parser.add_argument("-a", action="store_true")
    parser.add_argument("-n", "--no-header", action="store_true", required=True)
    parser.add_argument("-o", "--format", required=True)
    parser.add_argument("jobids", nargs="*")
    asked = parser.parse_args(words)
    failed = 0
    for jobid in asked.jobids or sorted((each.name for each in folder.iterdir()), reverse=True):
        try:
            job, state, code, note, _ = job_of(folder, jobid)
        except FileNotFoundError:
            failed |= fail("jobs", f"JobID {jobid} unknown")
            continue
        if asked.jobids or asked.a or state != "INACTIVE":
            ids, exception = SimpleNamespace(f58=job.name.replace("f", "ƒ", 1)), SimpleNamespace(note=note)
            print(Formatter().format(asked.format, id=ids, state=state, returncode=code, exception=exception))
    return failed


def job(folder: Path, words: list[str]) -> int:
    """``flux job hostpids [--timeout=FSD] ID``; real Flux waits for a job that has not begun."""
    _, state, _, _, pid = job_of(folder, words[-1])
    if words[0] != "hostpids" or state != "RUN":
        return fail("job", f"{words}: the job is in state {state}")
    print(f"{socket.gethostname()}:{pid}")
    return 0


if __name__ == "__main__":
    command = {"submit": submit, "cancel": cancel, "jobs": jobs, "job": job, "shell": shell}[sys.argv[2]]
    sys.exit(command(Path(sys.argv[1]), sys.argv[3:]))
