"""What starts agents: commands, what their words mean, and which variables travel."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import UsageError
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.agents.agents import Agents, AgentStarter, StarterGroup
from farandole.launch.agents.local import Local
from farandole.launch.agents.srun import Srun
from farandole.launch.agents.ssh import Ssh
from farandole.launch.hosts.plan import Job
from farandole.launch.hosts.remote_environment import HOST_SPECIFIC, for_other_hosts
from farandole.launch.job.launcher import Launcher
from farandole.launch.job.loop import JobResult
from farandole.settings import Settings
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S

SETTINGS = Settings(start_timeout_s=10, host_timeout_s=2.5)
STARTERS = [Local(), Ssh(), Srun()]


@pytest.mark.parametrize("starter", STARTERS, ids=lambda starter: type(starter).__name__)
@given(hosts=st.lists(st.sampled_from("abcd"), min_size=1, max_size=6))
def test_each_host_gets_one_agent(starter: AgentStarter, hosts: list[str]) -> None:
    groups = starter.groups(hosts, "a")
    assert sorted(host for group in groups for host in group.hosts) == sorted(set(hosts))


def test_ssh_is_told_to_be_quiet_quick_and_as_the_user_says() -> None:
    words = Ssh(2222, "key", ("StrictHostKeyChecking=no", "ConnectTimeout=1")).command(["b"], SETTINGS)
    assert words[:3] == ["ssh", "-T", "-x"]
    options = [value for option, value in pairwise(words) if option == "-o"]
    assert options[0] == "BatchMode=yes"
    assert options.index("ConnectTimeout=1") < options.index("ConnectTimeout=8")  # ssh takes the first
    assert {"ServerAliveInterval=1", "ServerAliveCountMax=3", "StrictHostKeyChecking=no"} < set(options)
    assert (words[words.index("-p") + 1], words[words.index("-i") + 1]) == ("2222", "key")
    assert words[-3:-1] == ["--", "b"]
    assert shlex.split(words[-1])[:3] == ["exec", sys.executable, "-c"]
    assert not any("ServerAlive" in word for word in Ssh().command(["b"], Settings(host_timeout_s=0)))


def test_this_host_is_not_reached_over_ssh() -> None:
    assert [type(starter).__name__ for starter, _ in Ssh().groups(["a", "b", "a"], "a")] == ["Local", "Ssh"]


def test_srun_starts_one_task_on_each_host() -> None:
    words = Srun().command(["n1", "n2"], SETTINGS)
    assert words[words.index("--nodes") + 1] == words[words.index("--ntasks") + 1] == "2"
    assert words[words.index("--nodelist") + 1] == "n1,n2"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("me@b: Permission denied (publickey,password).", "type: ssh-copy-id b"),
        ("ssh: Could not resolve hostname b: Name or service not known", "correct its name in -H"),
        ("banner\nHost key verification failed.", "Host key verification failed.: .*type: ssh b true"),
        ("ssh: connect to host b port 22: Connection refused", r"on this port \(-p\)"),
        ("ssh: connect to host b port 22: Connection timed out", "it is down"),
        ("bash: line 1: /x/python: No such file or directory", f"at the same place: {sys.executable}"),
        ("bash: /x/python: Permission denied", "at the same place"),
        ("  File x\nModuleNotFoundError: No module named 'farandole'", "-m pip install farandole=="),
        ("/x/python: error while loading shared libraries: libpython3.so", "LD_LIBRARY_PATH"),
        ("farandole: none of the controller's addresses answered within 5 s: x", r"\(a firewall\?\)"),
        ("one\ntwo", "the ssh that started its agent exited with code 255, and said: two"),
        ("", "the ssh that started its agent exited with code 255$"),
    ],
)
def test_what_ssh_says_is_answered_with_what_to_type(said: str, words: str) -> None:
    text = Ssh().explain(["b"], 255, said)
    assert text.startswith("host b: ")
    assert "\n" not in text
    assert re.search(words, text), text


def test_the_last_errors_of_srun_are_said() -> None:
    text = Srun().explain(["n1", "n2"], 1, "srun: job 7 queued\nsrun: error: Unable to create step: Busy\n")
    assert "the agents of n1, n2 exited with code 1: srun: error: Unable to create step: Busy" in text


def test_how_an_agent_here_ended() -> None:
    assert Local().explain(["a"], -9, "") == "the agent on a was killed by SIGKILL; its workers were killed"
    assert "(no memory)" in Local().explain(["a"], 1, "x\nfarandole: no memory\n")


def test_a_starter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match=r"ssh was not found.* needed to start agents"):
        Agents([StarterGroup(Local(), ("a",)), StarterGroup(Ssh(), ("b",))], Settings(), captured=True)


def test_a_child_that_ignores_everything_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.launch.agents.agents.END_S", 0.1)
    deaf = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    monkeypatch.setattr("farandole.launch.agents.local.entry_command", lambda _: [sys.executable, "-c", deaf])
    with Agents([StarterGroup(Local(), ("a",))], Settings(), captured=True) as agents:
        (agent,) = agents
        while agent.said != "up":
            agent.attend()
        agent.kill()
    assert agent.code == -signal.SIGKILL


def test_a_child_that_serves_two_hosts_and_fails_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.launch.agents.local.entry_command", lambda _: ["false"])
    result = Launcher(Job(["true"], ("a", "b"), SETTINGS, starter=Local())).run()
    assert result == JobResult(1, "the agent on a, b exited with code 1; its workers were killed")


ONE_MORE = """
import os, signal, sys
from farandole.launch.agents import local
from farandole.launch.agents.agents import Agents, StarterGroup
from farandole.settings import Settings

local.entry_command = lambda _: ["sleep", "1000"]
agents = Agents([], Settings(), captured=True, death_signal=signal.SIGTERM)
print(agents.add(StarterGroup(local.Local(), ("a",)))._pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_that_is_added_does_not_outlive_the_launcher_either() -> None:
    done = subprocess.run([sys.executable, "-c", ONE_MORE], check=False, stdout=subprocess.PIPE, timeout=PATIENCE_S)
    pid = int(done.stdout)
    deadline = time.monotonic() + 30.0
    while os.path.exists(f"/proc/{pid}") and b") Z " not in Path(f"/proc/{pid}/stat").read_bytes():
        assert time.monotonic() < deadline


def test_a_child_that_is_added_has_the_limits_from_before_the_router_raised_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = (
        "import sys, resource; sys.stdin.readline(); print(*resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)"
    )
    monkeypatch.setattr("farandole.launch.agents.local.entry_command", lambda _: [sys.executable, "-c", limits])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Agents([], Settings(), captured=True) as agents:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
        try:
            agent = agents.add(StarterGroup(Local(), ("a",)))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        agent.config(LaunchedAgentConfig.of(Settings(), [], ""))
        while agent.code is None:
            agent.attend()
    assert agent.said == f"{before[0]} {before[1]}"


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_variables_travel_unless_they_describe_a_host(variables: dict[str, str]) -> None:
    kept = {"OMP_NUM_THREADS": "4", "LANG": "C", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "HOMEPAGE": "x"}
    described = {name.replace("*", "X"): "x" for name in HOST_SPECIFIC}
    sent = for_other_hosts({**variables, **kept, **described})
    assert sent.items() >= kept.items()
    assert not sent.keys() & described.keys()
    assert for_other_hosts(sent) == sent


def test_the_page_lists_the_variables_that_do_not_travel() -> None:
    page = (ROOT / "docs" / "how-to" / "run-on-many-hosts.md").read_text()
    assert [name for name in HOST_SPECIFIC if f"`{name}`" not in page] == []
