"""``farandole run -H``: agents over real ssh, on hosts made of namespaces."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import farandole
from tests.support.cluster.running import DEADLINE_S, LAUNCHER, StartOnCluster, kill_on
from workbench.cluster import HOME, Cluster

TWO = ("-H", "node1:2,node2:2")
PATIENT = ("--host-timeout", "20", "--start-timeout", "60")
"""On a machine where all hosts share two busy cores, silence means little."""

SLEEP = "echo up; exec sleep 1000"
AGENT = "farandole.launch.agents.agent"

REPORT = """
import json, os, sys
names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"]
facts = {name: os.environ["FARANDOLE_" + name] for name in names}
facts |= {"host": os.uname().nodename, "cwd": os.getcwd(), "home": os.environ["HOME"], "word": os.environ["WORD"]}
facts |= {"large": len(os.environ["LARGE"]), "tty": os.environ.get("SSH_TTY"), "ssh": "SSH_CONNECTION" in os.environ}
facts |= {"key": os.environ["FARANDOLE_KEY"], "python": sys.executable, "horovod": os.environ["HOROVOD_LOCAL_RANK"]}
print(json.dumps(facts), flush=True)
print("to stderr", facts["RANK"], file=sys.stderr, flush=True)
while not os.path.exists("go"):
    import time; time.sleep(0.01)
"""


def test_workers_know_their_place_and_have_the_launchers_environment(
    cluster: Cluster, start: StartOnCluster, tmp_path: Path
) -> None:
    word = "two\nlines, a 'quote' and a \\"
    job = start(
        cluster, "-H", "node[1-2]:2,localhost:1", *PATIENT, python=REPORT,
        environment={"WORD": word, "LARGE": "x" * 100_000, "SSH_TTY": "/dev/pts/7"},
    )  # fmt: skip
    job.prints('"RANK"', 5)
    seen = " ".join(job.left().values())
    (tmp_path / "go").touch()
    assert job.end() == 0
    facts = sorted((json.loads(line.partition(":")[2]) for line in job.stdout.splitlines()), key=lambda f: f["RANK"])
    assert [fact["host"] for fact in facts] == [fact["HOSTNAME"] for fact in facts]
    assert [fact["host"] for fact in facts] == ["node1", "node1", "node2", "node2", "head"]
    assert [fact["LOCAL_RANK"] for fact in facts] == [fact["horovod"] for fact in facts] == ["0", "1", "0", "1", "0"]
    assert [fact["LOCAL_SIZE"] for fact in facts] == ["2", "2", "2", "2", "1"]
    assert [fact["CROSS_RANK"] for fact in facts] == ["0", "0", "1", "1", "2"]
    assert [fact["CROSS_SIZE"] for fact in facts] == ["3", "2", "3", "2", "3"]
    for fact in facts:
        assert (fact["SIZE"], fact["word"], fact["large"]) == ("5", word, 100_000)
        assert (fact["cwd"], fact["home"], fact["python"]) == (str(tmp_path), str(HOME), sys.executable)
        assert fact["key"] not in seen
    assert [fact["tty"] for fact in facts] == [None] * 4 + ["/dev/pts/7"]
    assert not any(fact["ssh"] for fact in facts)
    assert sorted(job.stderr.splitlines()) == [f"[{rank}]<stderr>:to stderr {rank}" for rank in range(5)]


def test_a_function_is_called_on_hosts_too(cluster: Cluster, start: StartOnCluster, tmp_path: Path) -> None:
    (tmp_path / "call.py").write_text(
        "import farandole, os\n"
        "print(farandole.run(lambda n: (n, os.uname().nodename), args=(7,), np=3, hosts='node1:2,node2:2',"
        " start_timeout_s=60, host_timeout_s=20))"
    )
    done = cluster.run("head", [sys.executable, "call.py"], cwd=tmp_path, timeout_s=DEADLINE_S)
    assert done.stdout == "[(7, 'node1'), (7, 'node1'), (7, 'node2')]\n"


def test_a_function_is_called_on_hosts_that_may_come_and_go(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node1:2\nnode2\n")
    (tmp_path / "call.py").write_text(
        """
import farandole, os

def host(number):
    from farandole.runtime.session.init import init, shutdown
    init()
    shutdown()
    return number, os.uname().nodename

print(farandole.run(host, args=(7,), min_np=3, hostfile='hosts', start_timeout_s=60, host_timeout_s=20))
"""
    )
    done = cluster.run("head", [sys.executable, "call.py"], cwd=tmp_path, timeout_s=DEADLINE_S)
    assert done.stdout == "[(7, 'node1'), (7, 'node1'), (7, 'node2')]\n"


# -- what keeps a host from taking part -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-H", "node1,nonesuch"), r"host nonesuch: .*not resolve hostname nonesuch.*: correct its name in -H"),
        (("-H", "node1", "-p", "29"), r"host node1: .*Connection refused: is an ssh server running there"),
        (
            ("-H", "node1,node2", "--ssh-option", "IdentityFile=/none", "--ssh-option", "IdentitiesOnly=yes"),
            r"host node\d: .*Permission denied .*: ssh may not ask for a password here; type: ssh-copy-id node\d",
        ),
        (
            ("-H", "node1", "--ssh-option", "UserKnownHostsFile=/dev/null"),
            r"host node1: Host key verification failed.: .*type: ssh node1 true",
        ),
        (
            ("-H", "node1,10.77.0.99", "--start-timeout", "5"),
            r"host 10\.77\.0\.99: .*(No route to host|timed out).*: it is down, or not to be reached",
        ),
        (
            ("-H", "node1,node2", "--network-interface", "lo", "--start-timeout", "16"),
            r"host node\d: .*none of the controller's addresses answered within 8 s: tcp://127.*\(a firewall\?\)",
        ),
        (("-H", "node1", "--network-interface", "ib0"), r"no interface ib0, but lo, eth0"),
    ],
    ids=["name", "port", "password", "host key", "down", "firewall", "interface"],
)
def test_what_keeps_a_host_away_is_said_with_the_remedy(
    cluster: Cluster, start: StartOnCluster, options: tuple[str, ...], words: str
) -> None:
    job = start(cluster, *options, bash="echo started")
    assert job.end() in (1, 2)
    assert job.stdout == ""
    (line,) = job.stderr.splitlines()
    assert re.search(words, line), line


def private_python(cluster: Cluster, host: str, python: str) -> str:
    """A Python at a place where other hosts have none."""
    path = cluster.path(host, "/dev/shm/python")
    path.unlink(missing_ok=True)
    path.symlink_to(python)
    return "/dev/shm/python"


def test_a_host_without_this_python_is_named(cluster: Cluster, start: StartOnCluster, tmp_path: Path) -> None:
    bare = os.path.realpath(sys.executable)
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    python = private_python(cluster, "head", bare)
    cluster.path("node1", "/dev/shm/python").unlink(missing_ok=True)
    job = start(cluster, "-H", "node1", command=["true"], environment=environment, executable=python)
    assert job.end() == 1
    assert re.search(r"host node1: .*/dev/shm/python.*: the same Python must be there at the same place", job.stderr)


def test_a_host_without_farandole_or_with_another_version_is_named(
    cluster: Cluster, start: StartOnCluster, tmp_path: Path
) -> None:
    """The launcher is a copy of the package in the head's own memory, of a later version."""
    package = Path(farandole.__file__).parent
    cluster.run("head", ["cp", "-r", str(package), "/dev/shm/farandole"])
    front = cluster.path("head", "/dev/shm/farandole/version.py")
    front.write_text(front.read_text().replace(f'"{farandole.__version__}"', '"9.9.9"'))
    environment = {"PYTHONPATH": os.pathsep.join(["/dev/shm", *filter(None, sys.path)])}
    # Without site: an editable installation would have the first word on where the package is.
    job = start(cluster, "-H", "node1", command=["true"], environment=environment, flags=["-S"])
    assert job.end() == 1
    assert f"host node1 has Farandole {farandole.__version__} and this one has 9.9.9" in job.stderr
    private_python(cluster, "node1", os.path.realpath(sys.executable))
    python = private_python(cluster, "head", os.path.realpath(sys.executable))
    job = start(cluster, "-H", "node1", command=["true"], environment=environment, executable=python)
    assert job.end() == 1
    assert "No module named" in job.stderr
    assert "type there: /dev/shm/python -m pip install farandole==9.9.9" in job.stderr


def test_a_folder_or_program_that_is_not_there_is_named(
    cluster: Cluster, start: StartOnCluster, tmp_path: Path
) -> None:
    cluster.run("head", ["mkdir", "-p", "/dev/shm/only/here"])
    job = start(cluster, "-H", "node1:2", before=["env", "-C", "/dev/shm/only/here"], command=["true"])
    assert job.end() == 126
    assert "on node1 could not be started: true cannot be started: there is no /dev/shm/only/here" in job.stderr
    job = start(cluster, *TWO, command=["nonesuch"])
    assert job.end() == 127
    assert re.search(r"rank \d on node\d could not be started: nonesuch was not found", job.stderr)


def test_what_shells_print_for_ssh_is_no_output_of_the_job(cluster: Cluster, start: StartOnCluster) -> None:
    profile = cluster.path("head", HOME / ".bashrc")
    profile.write_text("echo noise; echo noise >&2\n")
    try:
        job = start(cluster, *TWO, bash="echo worker")
        assert job.end() == 0
    finally:
        profile.unlink()
    assert sorted(job.stdout.splitlines()) == [f"[{rank}]<stdout>:worker" for rank in range(4)]
    assert job.stderr == ""


def test_the_users_ssh_config_counts(cluster: Cluster, start: StartOnCluster) -> None:
    config = cluster.path("head", HOME / ".ssh" / "config")
    config.write_text("Host alias\n  HostName node2\n")
    try:
        job = start(cluster, "-H", "alias", bash="hostname; echo $FARANDOLE_HOSTNAME")
        assert job.end() == 0
    finally:
        config.unlink()
    assert job.stdout.splitlines() == ["[0]<stdout>:node2", "[0]<stdout>:alias"]


# -- output -----------------------------------------------------------------------------------------------------------

FLOOD = """
import os
rank = int(os.environ["FARANDOLE_RANK"])
text = b"".join(b"%d %d %s\\n" % (rank, n, b"x" * (n % 150)) for n in range(60_000))
text += b"%d 60000 %s\\n" % (rank, b"y" * 3_000_000)
for fd in (1, 2):
    view = memoryview(text)
    while view:
        view = view[os.write(fd, view[:77_777]):]
"""


def test_a_flood_from_several_hosts_arrives_whole(cluster: Cluster, start: StartOnCluster) -> None:
    job = start(cluster, *TWO, *PATIENT, python=FLOOD)
    assert job.end() == 0
    for stream, text in (("stdout", job.stdout), ("stderr", job.stderr)):
        counts: dict[str, int] = defaultdict(int)
        for line in text.splitlines():
            tag, _, rest = line.partition(":")
            assert tag.endswith(f"]<{stream}>"), line[:300]
            rank, number, filler = rest.split(" ")
            assert tag == f"[{rank}]<{stream}>"
            assert int(number) == counts[rank]
            assert len(filler) == (int(number) % 150 if number != "60000" else 3_000_000)
            counts[rank] += 1
        assert counts == {str(rank): 60_001 for rank in range(4)}


def test_a_reader_that_does_not_read_holds_workers_up_and_loses_nothing(
    cluster: Cluster, start: StartOnCluster, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    line = "head -c 200000 /dev/zero | tr '\\0' $FARANDOLE_RANK; echo"
    script = f"for n in {{1..40}}; do {line}; done; touch done.$FARANDOLE_RANK"
    shell = ["bash", "-c", f'exec "$@" >{pipe}', "bash"]
    job = start(cluster, "-H", "node1,node2", *PATIENT, before=shell, bash=script)
    assert select.select([reader], [], [], DEADLINE_S)[0]
    assert not list(tmp_path.glob("done.*"))
    os.set_blocking(reader, True)
    with open(reader, "rb") as file:
        lines = file.read().splitlines()
    assert job.end() == 0
    assert sorted(set(lines)) == [b"[%d]<stdout>:%s" % (rank, b"%d" % rank * 200_000) for rank in (0, 1)]
    assert len(lines) == 80


def test_output_in_files_is_written_by_each_host(cluster: Cluster, start: StartOnCluster, tmp_path: Path) -> None:
    job = start(cluster, *TWO, "--output-filename", "logs", bash="hostname; hostname >&2; exit 0")
    assert job.end() == 0
    assert (job.stdout, job.stderr) == ("", "")
    for rank, host in enumerate(["node1", "node1", "node2", "node2"]):
        for stream in ("stdout", "stderr"):
            assert (tmp_path / "logs" / f"rank.{rank}" / stream).read_text() == f"{host}\n"


# -- ends -------------------------------------------------------------------------------------------------------------


def test_a_failure_on_one_host_ends_the_job_on_all(cluster: Cluster, start: StartOnCluster) -> None:
    together = "touch up.$FARANDOLE_RANK; until [ $(ls up.* | wc -l) = 4 ]; do sleep 0.02; done"
    failing = "if ((FARANDOLE_RANK == 3)); then echo why >&2; exit 7; fi"
    script = f"trap 'echo told; exit' TERM; {together}; {failing}; while :; do sleep 0.05; done"
    job = start(cluster, *TWO, *PATIENT, bash=script)
    assert job.end() == 7
    assert job.stdout.count("told") == 3
    assert job.stderr.splitlines()[-2:] == [
        "farandole: rank 3 on node2 exited with code 7; the last lines of its stderr:",
        "    why",
    ]


def test_ctrl_c_once_and_twice(cluster: Cluster, start: StartOnCluster) -> None:
    job = start(cluster, *TWO, *PATIENT, bash="trap 'echo tidied; exit' TERM; echo up; while :; do sleep 0.05; done")
    job.prints("up", 4)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130
    assert job.stdout.count("tidied") == 4
    job = start(
        cluster, *TWO, *PATIENT, "--grace-seconds", "900", bash="trap '' TERM; echo up; while :; do sleep 1; done"
    )
    job.prints("up", 4)
    job.process.send_signal(signal.SIGINT)
    job.until(lambda: "again: kill at once" in job.stderr, "for the first answer")
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130


def test_ctrl_c_while_a_host_does_not_answer(cluster: Cluster, start: StartOnCluster) -> None:
    job = start(cluster, "-H", "node1,10.77.0.99", *PATIENT, bash="echo started")
    job.until(lambda: any("ssh" in words for words in job.left().values()), "for ssh")
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130
    assert job.stdout == ""


def test_killing_the_launcher_leaves_nothing(cluster: Cluster, start: StartOnCluster) -> None:
    job = start(
        cluster, *TWO, *PATIENT, bash="(setsid bash -c 'trap \"\" TERM; echo deep; sleep 1000') & echo up; wait"
    )
    job.prints("deep", 4)
    kill_on(cluster, "head", LAUNCHER)
    job.leaves_nothing()


@pytest.mark.parametrize(
    ("host", "victim", "words"),
    [
        ("node2", AGENT, r"host node2: the ssh that started its agent exited with code 255"),
        ("head", "ssh -T -x -o BatchMode=yes", r"host node\d: the ssh that started its agent was killed by SIGKILL"),
    ],
    ids=["agent", "ssh"],
)
def test_killing_an_agent_or_its_ssh_ends_the_job(
    cluster: Cluster, start: StartOnCluster, host: str, victim: str, words: str
) -> None:
    job = start(cluster, *TWO, *PATIENT, bash=SLEEP)
    job.prints("up", 4)
    kill_on(cluster, host, victim)
    assert job.end() == 1
    assert re.search(words, job.stderr), job.stderr


@pytest.mark.parametrize("fault", ["freeze", "cut"])
def test_a_silent_host_is_named_and_ends_its_workers_when_it_comes_back(
    cluster: Cluster, start: StartOnCluster, fault: str
) -> None:
    job = start(cluster, *TWO, "--host-timeout", "3", "--start-timeout", "60", bash=SLEEP)
    job.prints("up", 4)
    getattr(cluster, fault)("node2")
    try:
        job.until(lambda: job.process.poll() is not None, "for the end")
        assert job.process.returncode == 1
        assert "host node2 has sent nothing for 3 s: it is down, frozen, or cut off" in job.stderr
        job.until(lambda: not cluster.processes("node1"), "for the workers of the other host to end")
    finally:
        getattr(cluster, {"freeze": "thaw", "cut": "heal"}[fault])("node2")
    job.leaves_nothing()


def test_a_firewall_that_lets_a_range_of_ports_through_is_enough(cluster: Cluster, start: StartOnCluster) -> None:
    rules = ["-i lo -j ACCEPT", "-m state --state ESTABLISHED,RELATED -j ACCEPT", "-p tcp --dport 22 -j ACCEPT"]
    rules += ["-p tcp --dport 60001:60100 -j ACCEPT", "-p tcp -j REJECT"]
    script = """
import numpy as np
import farandole.numpy as hvd
hvd.init()
print(float(hvd.allreduce(np.ones(300_000), op=hvd.Sum)[0]), float(hvd.allreduce(np.ones(1), name="small")[0]))
hvd.shutdown()
"""
    for host in cluster.hosts:
        for command in ("iptables", "ip6tables"):
            for rule in rules:
                cluster.run(host, [command, "-A", "INPUT", *rule.split()])
    try:
        for options in (("-np", "4"), ("--min-np", "4"), ("-np", "4", "--tree-radix", "2")):
            job = start(cluster, *TWO, *PATIENT, *options, "--engine", "tcp", "--ports", "60001-60100", python=script)
            assert job.end() == 0, job.stderr
            assert [line.partition(":")[2] for line in job.stdout.splitlines()] == 4 * ["4.0 1.0"]
    finally:
        for host in cluster.hosts:
            for command in ("iptables", "ip6tables"):
                cluster.run(host, [command, "-F", "INPUT"])
