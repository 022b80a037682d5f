"""The command line: every knob is an option, what is wrong is answered with what to type."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import farandole
from farandole.cli import main
from farandole.launch.command.options import Parser, add_knobs, knob_arguments, read_file
from farandole.settings import KNOBS, PAIRS, Settings
from tests.support.launch.running import StartJob


def _parse(*arguments: str) -> Settings:
    parser = Parser(prog="test")
    add_knobs(parser)
    return Settings.resolve(knob_arguments(parser.parse_args(arguments)), environment={})


@pytest.mark.parametrize("name", [name for name, knob in KNOBS.items() if knob.flags or knob.off_flags])
def test_every_knob_has_an_option_that_sets_it(name: str) -> None:
    knob, default = KNOBS[name], getattr(Settings(), name)
    if knob.off_flags or not knob.flags:
        assert getattr(_parse(knob.off_flags[0]), name) is False
    elif isinstance(default, bool):
        assert getattr(_parse(knob.flags[0].replace("--", "--no-")), name) is False
    elif name in PAIRS:
        assert getattr(_parse(knob.flags[0], "2", "3.5"), name) == (2.0, 3.5)
    elif isinstance(default, (int, float)):
        assert getattr(_parse(knob.flags[0], "3"), name) == 3 * knob.flag_scale
    else:
        value = default or {"ports": "7000-7009"}.get(name, "x")
        assert getattr(_parse(knob.flags[0], value), name) == value


def test_horovods_spelling_of_log_levels_is_taken() -> None:
    assert _parse("--log-level", "WARNING").log_level == "warning"


def test_argument_beats_file_beats_environment(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('engine = "shm"\ngrace_s = 1\n')
    settings = Settings.resolve({"engine": "solo"}, read_file(str(tmp_path / "f.toml")), {"FARANDOLE_GRACE_S": "9"})
    assert (settings.engine, settings.grace_s) == ("solo", 1.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-np", "2", "--engin", "shm", "true"], "did you mean --engine?"),
        (["run", "-np", "2", "--slots", "1", "true"], "did you mean --slots-per-host?"),
        (["chekc"], "did you mean check?"),
        (["run", "-np", "2", "--nonsense", "true"], "The options are: "),
        (["run", "-np", "2", "--engine", "warp", "true"], "'auto', 'solo', 'shm'"),
        (["run", "-np", "two", "true"], "invalid int value: 'two'"),
        (["run", "-np", "2", "-H", "elsewhere:2", "--ports", "all", "true"], "--ports all: write FIRST-LAST"),
        (["run", "-np", "0", "true"], "-np 0 asks for no worker"),
        (["run", "true"], "Say -np N"),
        (["run", "-np", "2"], "COMMAND"),
        (["run", "-np", "4", "-H", "localhost:2", "true"], "for example -H"),
        (["run", "-H", "elsewhere:2", "--launcher", "local", "true"], "elsewhere is not this host"),
        (["run", "-np", "2", "--launcher", "srun", "true"], "type salloc first"),
        (["run", "-np", "2", "--hostfile", "none", "true"], "the host file none cannot be read"),
        (["run", "-np", "2", "--config-file", "none", "true"], "the settings file none cannot be read"),
        (["run", "-np", "2", "--config-file", "odd.toml", "true"], "engin in the settings file"),
        (["run", "-np", "2", "--config-file", "bad.toml", "true"], "is not TOML"),
        (["rum"], "'run'"),
        ([], "COMMAND"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_command_lines_are_answered(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    (tmp_path / "odd.toml").write_text("engin = 'shm'")
    (tmp_path / "bad.toml").write_text("engine: shm")
    monkeypatch.chdir(tmp_path)
    try:
        status = main(arguments)
    except SystemExit as end:  # argparse's own way out
        status = int(end.code or 0)
    assert status == 2
    said = capsys.readouterr()
    assert words in said.err.replace("\n", " ")
    assert said.out == ""


def test_an_unknown_variable_of_ours_is_refused(job: StartJob) -> None:
    running = job("-np", "1", bash="true", environment={"FARANDOLE_ENGIN": "shm"})
    assert running.end() == 2
    assert "did you mean FARANDOLE_ENGINE" in running.stderr


def test_workers_share_the_cores_unless_told_otherwise(job: StartJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    for np, told, threads in ((2, {}, str(share)), (2, {"OMP_NUM_THREADS": "7"}, "7"), (1, {}, "none")):
        running = job("-np", str(np), bash="echo ${OMP_NUM_THREADS-none}", environment=told)
        assert running.end() == 0
        assert sorted(running.stdout.splitlines()) == [f"[{rank}]<stdout>:{threads}" for rank in range(np)]


def test_everything_after_the_command_is_the_commands(job: StartJob) -> None:
    running = job("-np", "1", "--", command=["echo", "-np", "9", "--engine", "warp", "--"])
    assert running.end() == 0
    assert running.stdout == "[0]<stdout>:-np 9 --engine warp --\n"


def test_help_teaches_in_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines.index("examples:") < 4
    text = "\n".join(lines)
    assert "--network-interface NAME" in text
    assert all(flag in text for knob in KNOBS.values() for flag in (*knob.flags, *knob.off_flags))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"farandole {farandole.__version__}\n"


def test_verbose_says_who_was_started_where(job: StartJob) -> None:
    running = job("-np", "2", "--verbose", bash="true")
    assert running.end() == 0
    assert sorted(line.partition(" on ")[0] for line in running.stderr.splitlines()) == [
        "farandole: started rank 0",
        "farandole: started rank 1",
    ]


@pytest.mark.parametrize("size", ["-np 1", "--min-np 1 -np 1", "-np 1 --horovod"])
def test_a_folder_that_is_gone_is_named(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        assert main(["run", *size.split(), "true"]) == 2
    finally:
        os.chdir(tmp_path)
    assert "the current folder, where the workers are to run, is not there any more" in capsys.readouterr().err


def test_a_signal_asks_the_workers_to_end_and_another_one_kills_them(job: StartJob) -> None:
    running = job("-np", "2", "--grace-seconds", "1000", bash="trap '' TERM; echo up; while :; do sleep 0.1; done")
    running.prints("up", 2)
    running.process.send_signal(signal.SIGINT)
    running.until(lambda: "at once" in running.stderr, "for the first answer")
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 128 + signal.SIGINT
    said = [line for line in running.stderr.splitlines() if line.startswith("farandole: ")]  # bash may print, too
    assert [line for line in said if "waiting for the workers" not in line] == [
        "farandole: SIGINT: ending 2 workers (again: kill at once)",
        "farandole: SIGTERM again: killing the workers",
        "farandole: the job was ended by SIGINT",
    ]
