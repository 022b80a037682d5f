"""``farandole horovodrun``: Horovod's flags, those that mean nothing here named, unknown ones refused."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from farandole import cli
from farandole.launch.command import horovodrun
from farandole.launch.command.options import Parser
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.hosts.plan import Job

# The flags of horovodrun 0.28.1, each as one may type it.
FLAGS = """
--num-proc 2 | --disable-cache | --start-timeout 60 | --network-interfaces eth0,lo | --network-interface lo
--verbose | --prefix-output-with-timestamp | -p 12345 | -i /key | --slots-per-host 2 | --elastic-timeout 600
--reset-limit 3 | --blacklist-cooldown-range 1 10 | --fusion-threshold-mb 64 | --cycle-time-ms 3.5
--cache-capacity 512
--hierarchical-allreduce | --no-hierarchical-allreduce | --hierarchical-allgather | --no-hierarchical-allgather
--torus-allreduce | --no-torus-allreduce | --autotune | --autotune-log-file /log | --autotune-warmup-samples 3
--autotune-steps-per-sample 10 | --autotune-bayes-opt-max-samples 20 | --autotune-gaussian-process-noise 0.8
--timeline-filename /trace.json | --timeline-mark-cycles | --no-stall-check | --stall-check-warning-time-seconds 60
--stall-check-shutdown-time-seconds 600 | --log-level DEBUG | --log-without-timestamp
--log-hide-timestamp
--mpi-threads-disable | --mpi-args=--oversubscribe | --tcp | --binding-args=-x | --num-nccl-streams 2
--thread-affinity 1 | --gloo-timeout-seconds 30 | --gloo | --mpi | --jsrun | --hosts localhost:2
--output-filename /logs
"""


def parse(words: str) -> argparse.Namespace:
    parser: argparse.ArgumentParser = Parser()
    horovodrun.add_parser(parser.add_subparsers())
    return parser.parse_args(["horovodrun", *words.split()])


@pytest.mark.parametrize("flag", [flag.strip() for line in FLAGS.strip().splitlines() for flag in line.split("|")])
def test_every_flag_of_horovodrun_is_taken(flag: str) -> None:
    args = parse(f"-np 2 {flag} python train.py --batch-size 32")
    job = horovodrun.asked(args)
    assert isinstance(job, Job)
    assert job.command == ["python", "train.py", "--batch-size", "32"]
    assert job.size == 2
    assert job.settings.horovod
    spelled = flag.replace("=", " ").split(maxsplit=1)[0]
    foreign = any(spelled in f.flags for f in horovodrun.FOREIGN if f.why)
    assert len(horovodrun.without_meaning(args.foreign)) == int(foreign)


def test_flags_arrive_as_settings() -> None:
    words = "-np 2 --fusion-threshold-mb 32 --log-level INFO --start-timeout 77 --no-stall-check python x.py"
    job = horovodrun.asked(parse(words))
    assert isinstance(job, Job)
    settings = job.settings
    assert (settings.fusion_threshold_bytes, settings.log_level) == (32 * 2**20, "info")
    assert (settings.start_timeout_s, settings.stall_check) == (77.0, False)


def test_flags_with_one_reason_share_a_line() -> None:
    args = parse("-np 1 --mpi --cycle-time-ms 5 --hierarchical-allreduce python x.py")
    cycles, chosen = horovodrun.without_meaning(args.foreign)
    assert cycles.startswith("--cycle-time-ms: accepted without effect, messages are sent")
    assert chosen.startswith("--hierarchical-allreduce, --mpi: accepted without effect, the way of")


def test_nothing_is_said_about_what_happens_anyway() -> None:
    args = parse("-np 1 --gloo --disable-cache --no-autotune --log-with-timestamp python x.py")
    assert len(args.foreign) == 4
    assert horovodrun.without_meaning(args.foreign) == []


@pytest.mark.parametrize("flag", ["--min-np 1", "--max-num-proc 4", "--host-discovery-script true"])
def test_some_flags_make_a_job_elastic(flag: str) -> None:
    job = horovodrun.asked(parse(f"-np 2 {flag} python x.py"))
    assert isinstance(job, ElasticJob)
    assert job.job.settings.horovod


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--slots 2 --min-np 1", ("slots_per_host", 2)),
        ("--slots=2 --min-np 1", ("slots_per_host", 2)),
        ("--elastic 77 --min-np 1", ("elastic_timeout_s", 77.0)),
        ("--min 1", ("min_np", 1)),
        ("--fusion 32", ("fusion_threshold_bytes", 32 * 2**20)),
        ("--network lo", ("network_interface", "lo")),
        ("--no-stall", ("stall_check", False)),
        ("--hierarchical-allr", ("horovod", True)),
    ],
)
def test_a_flag_may_be_abbreviated_as_argparse_lets_horovodrun(typed: str, meant: tuple[str, object]) -> None:
    job = horovodrun.asked(parse(f"-np 2 {typed} python train.py"))
    settings = job.job.settings if isinstance(job, ElasticJob) else job.settings
    assert getattr(settings, meant[0]) == meant[1]


def test_what_follows_the_command_is_the_scripts_whatever_it_may_abbreviate() -> None:
    words = "python train.py --log 1 --host a --slots 3 -pr 4 --el=5"
    assert " ".join(parse(f"-np 2 {words}").command) == words


@pytest.mark.parametrize(
    ("typed", "told"),
    [("--cycel-time-ms", "--cycle-time-ms"), ("--ssh", "--ssh-identity-file or --ssh-option or --ssh-port")],
)
def test_unknown_flags_are_refused_with_the_nearest(typed: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["horovodrun", "-np", "2", typed, "5", "python", "x.py"])
    assert f"did you mean {told}?" in capsys.readouterr().err


def test_version_and_build_need_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, words in (("-v", "0.28.1"), ("-cb", "engines usable here")):
        with pytest.raises(SystemExit, match="0"):
            cli.main(["horovodrun", flag])
        assert words in capsys.readouterr().out


def test_it_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    say = "import horovod, os; print(horovod.__version__, os.environ['HOROVOD_RANK'])"
    subprocess.run(
        [sys.executable, "-m", "farandole", "horovodrun", "-np", "2", "--gloo", sys.executable, "-c", say], check=True
    )
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == ["[0]<stdout>:0.28.1 0", "[1]<stdout>:0.28.1 1"]
