"""A second user against the training of a first one, on the hosts of a real Slurm.

wrong = play(print)             # [] if no way works, and the first user has read no more than a line of each

The first user trains on two nodes under ``salloc``; workers are killed meanwhile, so that generations form anew. The
second user has a shell on the head and on a node, sees what ``/proc`` and Slurm show to every user, and tries ``WAYS``
there, one after the other: programs that print ``GOT`` and their findings, if they get anything.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
import sysconfig
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from workbench.cluster import HEAD, Process, SlurmCluster, UnavailableError

FIRST, SECOND = "games", "nobody"
"""Accounts that exist on every Linux, and own no files."""

HOSTS = (HEAD, "node1")
PATIENCE_S = 120.0
STEPS_OF_DEATH = (20, 400)

TRAIN = f"""
import os, threading
import numpy as np
import farandole.numpy as hvd
from farandole.numpy import elastic

hvd.init()
state, pause = elastic.NumpyState(total=np.zeros(1), step=0), threading.Event()

@elastic.run
def train(state):
    while not hvd.allreduce(os.path.exists("stop"), name="over", op=hvd.Max):
        if state.step in {STEPS_OF_DEATH} and hvd.rank() == 1 and not os.path.exists(f"dead.{{state.step}}"):
            open(f"dead.{{state.step}}", "w").close()
            os.kill(os.getpid(), 9)
        state.total += hvd.allreduce(np.full(1, hvd.rank() + 1.0), name="sum", op=hvd.Sum)
        state.step += 1
        hvd.log(loss=1 / state.step)
        state.commit()
        if hvd.rank() == 0 and state.step == 10:
            print("trains", flush=True)
        pause.wait(0.01)

train(state)
print("right" if state.total[0] == 3 * state.step else f"WRONG {{state.total}}", flush=True)
"""

_PROGRAM = """
import contextlib, ctypes, json, os, re, secrets, signal, socket, subprocess, sys, time

first, job, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)

def got(what):
    print("GOT", what)

def pids():
    for each in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{each}").st_uid == first:
                yield int(each)

def names():
    with open("/proc/net/unix", "rb") as file:
        return {line.split()[-1][1:] for line in file if b" @farandole" in line}

def ports():
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file][1:]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and int(row[7]) == first}

def called(many=1):
    for name in names():
        for _ in range(many):
            each = socket.socket(socket.AF_UNIX)
            each.setblocking(False)
            if not each.connect_ex(b"\\0" + name):
                yield each
    for port in ports():
        for _ in range(many):
            with contextlib.suppress(OSError):
                yield socket.create_connection(("127.0.0.1", port), 2)

def reads(path):
    try:
        with open(path, "rb") as file:
            return file.read(2**16)
    except OSError:
        return b""

def command(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, cwd="/")
    return done.returncode, done.stdout + done.stderr

def joins(variables):
    told = {**os.environ, **variables, "FARANDOLE_KEY": secrets.token_hex(32), "FARANDOLE_START_TIMEOUT_S": "2"}
    program = "import farandole.numpy as hvd; hvd.init(); print('in', hvd.size())"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=told, cwd="/", capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        got(done.stdout)

def owned(*roots):
    for root in roots:
        for place, folders, files in os.walk(root):
            for each in (*folders, *files):
                with contextlib.suppress(OSError):
                    if os.lstat(os.path.join(place, each)).st_uid == first:
                        yield os.path.join(place, each)
"""

WAYS = {
    "signals": """
        for pid in pids():
            for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1, 40, 41):
                with contextlib.suppress(PermissionError, ProcessLookupError):
                    os.kill(pid, number)
                    got(f"signal {number} to {pid}")
    """,
    "signals by descriptors": """
        for pid in pids():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGTERM)
                got(pid)
    """,
    "a debugger": """
        for pid in pids():
            if libc.ptrace(0x4206, pid, 0, 0) == 0:
                got(pid)
    """,
    "memory": """
        for pid in pids():
            for name in ("mem", "maps", "stack", "auxv"):
                if reads(f"/proc/{pid}/{name}"):
                    got(f"{name} of {pid}")
    """,
    "memory by process_vm_readv": """
        buffer = ctypes.create_string_buffer(8)
        local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
        remote = (ctypes.c_void_p * 2)(0x400000, 8)
        for pid in pids():
            if libc.process_vm_readv(pid, local, 1, remote, 1, 0) > 0 or ctypes.get_errno() == 14:
                got(pid)
    """,
    "variables": """
        for pid in pids():
            if reads(f"/proc/{pid}/environ"):
                got(pid)
    """,
    "arguments": r"""
        for pid in pids():
            if found := re.search(rb"[0-9a-f]{32,}|FARANDOLE_KEY|#[\\w-]{20,}", reads(f"/proc/{pid}/cmdline")):
                got(found[0])
    """,
    "open files": """
        for pid in pids():
            with contextlib.suppress(OSError):
                got(os.listdir(f"/proc/{pid}/fd"))
            for number in range(64):
                with contextlib.suppress(OSError):
                    os.close(os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR))
                    got(f"descriptor {number} of {pid}")
    """,
    "descriptors by pidfd_getfd": """
        for pid in pids():
            with contextlib.suppress(OSError):
                process = os.pidfd_open(pid)
                for number in range(64):
                    if libc.syscall(438, process, number, 0) >= 0:
                        got(f"{number} of {pid}")
    """,
    "shared memory": """
        for path in owned("/dev/shm"):
            if reads(path) or os.access(path, os.W_OK):
                got(path)
    """,
    "temporary files": """
        for path in owned("/tmp", "/run", "/var/tmp"):
            if not path.startswith(folder) and (reads(path) or os.access(path, os.W_OK)):
                got(path)
    """,
    "records of the run": """
        for path in owned(os.path.join(folder, "farandole-runs"), os.path.join(folder, "run")):
            if os.path.isfile(path) and reads(path) or os.access(path, os.W_OK):
                got(path)
    """,
    "silent callers": """
        held = list(called(100))
        time.sleep(3)
        for each in held:
            each.setblocking(False)
            with contextlib.suppress(OSError):
                if len(each.recv(4096)) > 200:
                    got("more than a greeting")
    """,
    "noise": """
        for each in called(5):
            with contextlib.suppress(OSError):
                each.setblocking(True)
                each.settimeout(0.5)
                each.sendall(os.urandom(4096))
    """,
    "greetings that never end": """
        for each in called(20):
            with contextlib.suppress(OSError):
                each.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03")
        time.sleep(2)
    """,
    "a greeting without keys": """
        greeting = b"\\xff" + bytes(8) + b"\\x7f\\x03\\0" + b"NULL".ljust(20, b"\\0") + bytes(32)
        ready = b"\\x04\\x19\\x05READY\\x0bSocket-Type\\0\\0\\0\\6DEALER"
        for each in called():
            with contextlib.suppress(OSError):
                each.setblocking(True)
                each.settimeout(1)
                each.sendall(greeting + ready)
                if b"READY" in each.recv(4096) + each.recv(4096):
                    got("a connection")
    """,
    "keys of his own": """
        import zmq
        from zmq.utils.monitor import recv_monitor_message
        with zmq.Context() as context:
            for address in [f"tcp://127.0.0.1:{port}" for port in ports()] + [f"ipc://@{n.decode()}" for n in names()]:
                with context.socket(zmq.DEALER) as each:
                    each.linger = 0
                    each.curve_publickey, each.curve_secretkey = zmq.curve_keypair()
                    each.curve_serverkey = zmq.curve_keypair()[0]
                    with each.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
                        each.connect(address)
                        if monitor.poll(500):
                            got(address)
                        each.disable_monitor()
    """,
    "names that are free": """
        until, held, taken = time.monotonic() + 5, [], set()
        while time.monotonic() < until:
            for name in names() - taken:
                stem = name.rpartition(b"-")[0]
                for each in (name, *(stem + b"-%d" % pid for pid in pids())):
                    mine = socket.socket(socket.AF_UNIX)
                    with contextlib.suppress(OSError):
                        mine.bind(b"\\0" + each)
                        mine.listen(100)
                        held.append(mine)
                        taken.add(each)
            time.sleep(0.02)
    """,
    "the page": r"""
        for port in ports():
            for path in ("/", "/live", "/socket", "/ws"):
                for key in ("", secrets.token_urlsafe(32)):
                    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as each:
                        each.settimeout(1)
                        each.sendall(f"GET {path}?key={key} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                        if b"loss" in each.recv(2**16):
                            got(path)
    """,
    "a rank of his own": """
        for port in ports():
            variables = {"FARANDOLE_RANK": "1", "FARANDOLE_SIZE": "2", "FARANDOLE_CONTROLLER": f"tcp://127.0.0.1:{port}"}
            joins(variables)
    """,
    "a rank of the job by Slurm's variables": """
        variables = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2",
                     "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "2",
                     "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_NUM_NODES": "2"}
        joins(variables)
    """,
    "a step in the job": """
        code, said = command("srun", "--overlap", "--immediate=2", f"--jobid={job}", "--nodes=1", "--ntasks=1", "id")
        if code == 0:
            got(said)
    """,
    "scancel": """
        for words in (["scancel", job], ["scancel", "--signal=KILL", f"{job}.0"], ["scancel", "--full", job]):
            command(*words)
    """,
    "scontrol": """
        for verb in ("update NumNodes=1 JobId=", "update TimeLimit=1 JobId=", "requeue ", "suspend ", "hold "):
            code, said = command("scontrol", *(verb + job).split())
            if code == 0:
                got(verb)
    """,
    "what Slurm shows": r"""
        for words in (["scontrol", "show", "job", "-dd", job], ["scontrol", "write", "batch_script", job, "-"],
                      ["squeue", "-o", "%all"], ["scontrol", "show", "step", f"{job}.0"]):
            if found := re.search(r"FARANDOLE_KEY|[0-9a-f]{32,}|#[\\w-]{20,}", command(*words)[1]):
                got(found[0])
    """,
    "the output of a step": """
        process = subprocess.Popen(["sattach", f"{job}.0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        time.sleep(1)
        process.kill()
        if b"trains" in process.communicate()[0]:
            got("output")
    """,
    "orders to the run": """
        for words in (["stop"], ["scale"], ["hold"], ["release"], ["ps"], ["runs", "open"]):
            given = [*words, os.path.join(folder, "run"), *(["1"] if words == ["scale"] else [])]
            code, said = command(sys.executable, "-m", "farandole", *given)
            if code == 0:
                got(f"{words}: {said}")
    """,
}  # fmt: skip


def _python_of_all() -> str:
    """An interpreter like this one that every user may execute."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (os.path.realpath(sys.executable), f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        parents = Path(path).parents
        if os.path.exists(path) and all(each.stat().st_mode & stat.S_IXOTH for each in parents):
            return path
    raise UnavailableError(f"other users may execute no {version}: apt-get install {version}")


@final
class _Accounts:
    """Commands of the cluster, run as one of the two users."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self._slurm, self._folder, self._python = slurm, folder, _python_of_all()
        (folder / "site").mkdir()
        packages = sysconfig.get_path("purelib")
        (folder / "site" / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({packages!r})\n")
        self._env = {"PYTHONPATH": str(folder / "site")}

    def become(self, name: str) -> list[str]:
        account = pwd.getpwnam(name)
        return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]

    def train(self) -> Process:
        """Start the training of the first user; its output goes to files."""
        (self._folder / "train.py").write_text(TRAIN)
        run = ["farandole", "run", "--min-np", "2", "--max-np", "2", "--live", "--record", "run"]
        words = [*self.become(FIRST), "salloc", "--quiet", "--nodes=2", "--ntasks=2", self._python, "-m", *run]
        with (self._folder / "out").open("w") as out, (self._folder / "err").open("w") as err:
            return self._slurm.cluster.popen(
                HEAD,
                [*words, self._python, "train.py"],
                env={**self._env, "HOME": str(self._folder)},
                cwd=self._folder,
                stdout=out,
                stderr=err,
            )

    def attack(self, host: str, way: str, job: str) -> str:
        """Let the second user try ``way`` on a host; returns what the program got, "" for nothing."""
        program = _PROGRAM + textwrap.dedent(WAYS[way])
        words = [self._python, "-c", program, str(pwd.getpwnam(FIRST).pw_uid), job, str(self._folder)]
        words = [*self.become(SECOND), *words]
        done = self._slurm.cluster.run(host, words, check=False, env={**self._env, "HOME": "/"}, cwd="/")
        if done.returncode:
            return f"the program failed: {done.stderr.strip()[-300:]}"
        return "; ".join(line for line in done.stdout.splitlines() if line.startswith("GOT"))[:300]


def play(tell: Callable[[str], object]) -> list[str]:
    """Play all ways; returns the errors."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place, SlurmCluster(2) as slurm:
        folder, account = Path(place), pwd.getpwnam(FIRST)
        folder.chmod(0o755)
        os.chown(folder, account.pw_uid, account.pw_gid)
        accounts = _Accounts(slurm, folder)
        training = accounts.train()
        _until(lambda: "trains" in (folder / "out").read_text(), training, folder)
        [job] = slurm.run(["squeue", "--noheader", "--format=%i"]).stdout.split()
        wrong = []
        for way in WAYS:
            found = [f"{way} on {host}: {said}" for host in HOSTS if (said := accounts.attack(host, way, job))]
            tell(f"{way}: {'WORKED' if found else 'nothing'}")
            wrong += found
        (folder / "stop").touch()
        _until(lambda: training.poll() is not None, training, folder)
        return [*wrong, *_judged(training, folder)]


def _until(is_so: Callable[[], bool], training: Process, folder: Path) -> None:
    """Wait until ``is_so``, the end of the training, or a deadline."""
    until_s = time.monotonic() + PATIENCE_S
    while not is_so() and training.poll() is None and time.monotonic() < until_s:
        time.sleep(0.05)  # nothing announces what a file shows
    assert is_so(), f"the training did not come so far:\n{(folder / 'out').read_text()}\n{(folder / 'err').read_text()}"


def _judged(training: Process, folder: Path) -> list[str]:
    """Errors of the training, and of the messages that its user has read."""
    out, err = (folder / "out").read_text(), (folder / "err").read_text()
    # Other lines are Slurm's: salloc and srun listen, too, and complain of each caller.
    told = [line for line in err.splitlines() if line.startswith("farandole: ") and "generation" not in line]
    wrong = [] if training.returncode == 0 else [f"the training ended with {training.returncode}: {err[-600:]}"]
    wrong += [] if out.count("right") == 2 else [f"its sum is wrong, or it did not end: {out[-200:]}"]
    dead = [each for each in STEPS_OF_DEATH if not (folder / f"dead.{each}").exists()]
    wrong += [f"no worker died at step {each}: the training was too short" for each in dead]
    return wrong + ([] if len(told) <= len(WAYS) else [f"the first user has read {len(told)} lines: {told}"])
