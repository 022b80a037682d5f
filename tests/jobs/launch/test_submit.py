"""``farandole submit``: scripts as golden files, defaults of sites and users, and a ``sbatch`` that says no."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farandole.cli import main
from farandole.errors import FarandoleError, SettingsError, UsageError
from farandole.launch.batch import defaults
from farandole.launch.batch.defaults import files, with_defaults
from farandole.launch.batch.script import BatchJob, batch_script
from farandole.launch.batch.submission import submitted
from farandole.launch.sbatch.environment import client_environment, environment, lease_environment
from farandole.launch.sbatch.options import BatchOptions, notice_s
from tests.support.paths import SUPPORT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GOLDEN = SUPPORT / "launch" / "batch_scripts"
ASKED = {
    "plain": ("-np", "8", "-N", "2", "-t", "1:00:00", "python", "train.py", "--lr", "0.1"),
    "gpus": (
        *("-np", "4", "--gres", "gpu:4", "-c", "8", "-p", "gpu", "-A", "project42", "-q", "long", "--mem", "64G"),
        *(
            "--sbatch=--constraint=a100",
            "--module",
            "CUDA/12.4",
            "--setup",
            "ulimit -n 4096",
            "--env",
            "WORD=two words",
        ),
        *("-J", "a name", "--verbose", "--engine", "tcp", "--no-horovod", "--", "python", "my script.py", "$HOME"),
    ),
    "elastic": ("--min-np", "2", "--max-np", "8", "-t", "24:00:00", "--notice", "120", "python", "-m", "train"),
}
SIZES = ("--min-np", "2", "--max-np", "16")
TRAIN = ("python", "train.py")
LEASES = (
    *(*SIZES, "--lease", "1x4@1h,20min", "--run-folder", "/scratch/me/run7", "-t", "24:00:00", "-p", "gpu"),
    *("--budget", "200nh", "--batch", "grow", "--when", "val_acc>=0.9", "--then", "np=2,nice=1000", *TRAIN),
)


@pytest.fixture(autouse=True)
def no_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The defaults of whoever runs the tests are none of them."""
    monkeypatch.setattr(defaults, "SITE", tmp_path / "site.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["submit", "--print", *words]) == 0
    return capsys.readouterr().out.replace(str(Path(sys.executable).parent), "BIN")


@pytest.mark.parametrize("name", ASKED)
def test_a_script_is_its_golden_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, *ASKED[name]) == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize("name", ASKED)
def test_a_script_is_shell(name: str) -> None:
    done = subprocess.run(["bash", "-n", GOLDEN / f"{name}.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_defaults_of_site_and_user_come_before_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site.toml").write_text(
        'partition = "cpu"\naccount = "all"\nmodules = ["Python"]\n[environment]\nA = "1"\nB = "1"\n'
    )
    (tmp_path / "farandole").mkdir()
    (tmp_path / "farandole" / "submit.toml").write_text(
        'account = "mine"\nmodules = ["CUDA"]\n[environment]\nB = "2"\n'
    )
    script = printed(capsys, "-np", "2", "-p", "gpu", "--env", "C=3", "python", "train.py")
    assert re.findall("--(partition|account)=(.*)", script) == [("partition", "gpu"), ("account", "mine")]
    assert re.findall("(?:load|export) (.*)", script)[:-1] == ["Python", "CUDA", "A=1", "B=2", "C=3"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("partitoin = 'gpu'", "did you mean partition?"),
        ("nodes = 'two'", "Expected `int | null`, got `str` - at `$.nodes`"),
        ("nodes = ", "is not TOML"),
    ],
)
def test_a_file_of_defaults_that_says_something_else_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(SettingsError, match=re.escape(told)):
        with_defaults({}, files({"XDG_CONFIG_HOME": str(tmp_path)}))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"nodes": 3}, "2 workers on 3 nodes: some would have none"),
        ({"partition": "a\n#SBATCH --uid=0"}, "write it without line breaks"),
        ({"partition": 'a"b'}, "no quotation marks"),
        ({"setup": ["one\ntwo"]}, "write it without line breaks"),
        ({"environment": {"A B": "1"}}, "'A B' is no name of a variable"),
        ({"time": "1hour"}, "time '1hour': write MINUTES, HH:MM:SS, DAYS-HH or a time such as 45min"),
        ({"time": "-5"}, "time '-5'"),
    ],
)
def test_what_no_script_can_say_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        batch_script(BatchJob(["python", "train.py"], [], 2, BatchOptions(**options)))


@pytest.mark.parametrize(
    ("asked", "written"), [("1h30min", "90"), ("2d", "2880"), ("90", "90"), ("1-12:30:00", "1-12:30:00")]
)
def test_a_time_limit_is_taken_in_the_words_of_leases_too(
    asked: str, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"#SBATCH --time={written}\n" in printed(capsys, "-np", "2", "-t", asked, "python", "train.py")


@pytest.mark.parametrize(
    ("limit", "notice"), [("4", 60), ("3:00", 45), ("20", 300), ("1-0", 300), ("45min", 300), ("unlimited", 300)]
)
def test_the_notice_of_a_short_job_is_a_quarter_of_its_limit(limit: str, notice: int) -> None:
    assert notice_s(BatchOptions(time=limit)) == notice


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"time": "2"}, "a time limit of 120 s leaves no time to train before the notice of 30 s"),
        ({"time": "5", "notice": 300}, "a longer one, -t 20, or --notice 180"),
        ({"time": "0:01:00", "notice": 10}, "write a longer one, -t 20"),
    ],
)
def test_a_limit_of_which_nothing_is_left_before_the_notice_is_refused(options: dict[str, Any], told: str) -> None:
    """Slurm told such a job to end as soon as it began, and it was queued again for ever."""
    with pytest.raises(UsageError, match=re.escape(told)):
        batch_script(BatchJob(["python", "train.py"], [], 2, BatchOptions(**options), elastic=True))


@pytest.mark.parametrize(
    ("limit", "status"), [("6:59", 2), ("4:00", 2), ("7:00", 0), ("9:08", 0), ("1:00:00", 0), ("UNLIMITED", 0), ("", 0)]
)
def test_a_limit_that_only_the_job_knows_is_refused_there(limit: str, status: int, tmp_path: Path) -> None:
    job = BatchJob(["train"], [], 2, elastic=True, path=str(tmp_path))
    for name, text in {"squeue": f"echo '{limit}'", "farandole": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    environment = {**os.environ, "SLURM_JOB_ID": "7"}
    command = ["bash", "-c", batch_script(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, f"a time limit of {limit} leaves" in done.stderr) == (status, status == 2)


@pytest.mark.parametrize("words", [("python", "train.py"), ("-np", "0", "python", "train.py")])
def test_a_job_without_a_number_of_workers_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *words]) == 2
    assert "how many workers? write -np N" in capsys.readouterr().err


def test_variables_of_another_job_and_its_key_stay_behind() -> None:
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "a", "A": "1", "FARANDOLE_ENGINE": "tcp"}
    left = {"SLURM_NTASKS": "3", "FARANDOLE_KEY": "k", "FARANDOLE_RANK": "1", "HOROVOD_SIZE": "2"}
    assert environment({**left, **kept}) == kept


def test_leases_get_no_secret_and_no_option_that_nobody_asked_for() -> None:
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "a", "A": "1", "MONKEY": "1", "BASH_FUNC_module%%": "()"}
    secret = {"WANDB_API_KEY": "k", "HF_TOKEN": "k", "PGPASSWORD": "k", "my_secret": "k", "AWS_SECRET_ACCESS_KEY": "k"}
    left = {"SBATCH_WAIT": "1", "SBATCH_TIMELIMIT": "5", "SLURM_NTASKS": "3", "FARANDOLE_KEY": "k", "SSH_KEY": "k"}
    assert lease_environment({**left, **secret, **kept}) == kept


def test_commands_whose_output_is_read_have_its_format_set() -> None:
    given = {"SQUEUE_FORMAT": "%i", "SLURM_TIME_FORMAT": "relative", "LC_ALL": "de_DE.UTF-8", "SLURM_CONF": "c"}
    assert client_environment(given) == {"SLURM_CONF": "c", "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def test_without_sbatch_a_job_is_not_submitted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sbatch is not found here"):
        submitted("", [], {"PATH": str(tmp_path)})


def test_what_sbatch_says_against_a_job_is_told(tmp_path: Path) -> None:
    program = tmp_path / "sbatch"
    program.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
    program.chmod(0o700)
    with pytest.raises(
        UsageError, match=r"^Slurm refuses this job: invalid partition specified: gpu\W+write --partition NAME"
    ):
        submitted("", [], {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})


def test_a_slurm_that_is_not_there_has_refused_nothing(tmp_path: Path) -> None:
    program = tmp_path / "sbatch"
    program.write_text("#!/bin/sh\necho 'sbatch: fatal: Could not establish a configuration source' >&2\nexit 1\n")
    program.chmod(0o700)
    with pytest.raises(FarandoleError, match=r"^Slurm cannot be reached from here: .* -- submit where sinfo answers"):
        submitted("", [], {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})


def test_scripts_and_policy_of_a_run_with_leases_are_their_golden_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, *LEASES) == (GOLDEN / "leases.txt").read_text()


def test_a_policy_file_may_end_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("look-s = 60\n[[rules]]\nwhen = 'loss<1'\nthen = 'np=3'")
    text = printed(capsys, "--policy", str(policy), *LEASES)
    found = tomllib.loads(text.partition("policy.toml <==\n")[2])
    assert found["array-leases"] == 8
    assert found["look-s"] == 60
    assert [rule["then"] for rule in found["rules"]] == ["np=3", "np=2,nice=1000"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*SIZES, "--lease", "1x4@1min"), "less than a minute to train"),
        (("--min-np", "2"), "write --min-np N for the leader, and a larger --max-np N"),
        (("-np", "2"), "write --min-np N for the leader, and a larger --max-np N"),
        ((*SIZES, "--when", "acc>=0.9"), "each --when has a --then after it"),
        ((*SIZES, "--when", "acc=>0.9", "--then", "np=2"), "is no condition"),
        ((*SIZES, "--budget", "200"), "write 200nh"),
        ((*SIZES, "--budget", "0nh"), "write 200nh"),
        ((*SIZES, "--budget", "nannh"), "write a finite number"),
        ((*SIZES, "--policy", "/nowhere"), "--policy /nowhere: No such file or directory"),
        ((*SIZES, "--policy", "BROKEN"), "is not TOML"),
        ((*SIZES, "--leases", "0"), "--leases 0: at least one"),
        ((*SIZES, "--leases", "-1"), "--leases -1: at least one"),
    ],
)
def test_leases_that_cannot_be_are_told(
    words: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").write_text("max-np = ")
    named = [str(tmp_path / "broken") if word == "BROKEN" else word for word in words]
    assert main(["submit", "--print", "--lease", "1x4@1h", *named, *TRAIN]) != 0
    assert told in " ".join(capsys.readouterr().err.split())
