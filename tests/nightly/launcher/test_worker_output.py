"""The output of workers: complete, untorn, tagged; on pipes, on a terminal and in files."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.launch.running import DEADLINE_S, StartJob

FLOOD = """
import os, sys
rank = int(os.environ["FARANDOLE_RANK"])
text = b"".join(b"%d %d %s\\n" % (rank, n, b"x" * (n % 150)) for n in range(130_000))
for fd in (1, 2):
    view = memoryview(text)
    while view:
        view = view[os.write(fd, view[:77_777]):]
"""


def test_a_flood_arrives_whole(job: StartJob) -> None:
    running = job("-np", "4", python=FLOOD)
    assert running.end() == 0
    for stream, text in (("stdout", running.stdout), ("stderr", running.stderr)):
        assert len(text) > 40_000_000
        counts: dict[str, int] = defaultdict(int)
        for line in text.splitlines():
            tag, _, rest = line.partition(":")
            rank, number, *filler = rest.split(" ")
            assert tag == f"[{rank}]<{stream}>"
            assert int(number) == counts[rank]
            assert len(filler[0]) == int(number) % 150
            counts[rank] += 1
        assert set(counts.values()) == {130_000}


def test_both_streams_into_one_pipe_do_not_tear_each_other(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(FLOOD.replace("130_000", "20_000"))
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", sys.executable, "worker.py"]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=tmp_path,
        timeout=DEADLINE_S,
        check=True,
        text=True,
    )
    whole = re.compile(r"\[(\d)\]<std(?:out|err)>:\1 \d+ x*")
    lines = done.stdout.splitlines()
    assert len(lines) == 80_000
    assert all(map(whole.fullmatch, lines))


def test_lines_of_megabytes_and_lines_without_an_end(job: StartJob) -> None:
    running = job("-np", "3", bash="head -c 5000000 /dev/zero | tr '\\0' $FARANDOLE_RANK; sleep 0.02; printf end")
    assert running.end() == 0
    assert sorted(running.stdout.splitlines()) == [f"[{r}]<stdout>:{str(r) * 5_000_000}end" for r in range(3)]


def test_empty_lines_are_lines(job: StartJob) -> None:
    running = job("-np", "1", bash="printf 'a\\n\\n\\nb\\n\\n'")
    assert running.end() == 0
    assert running.stdout.splitlines() == [f"[0]<stdout>:{text}" for text in ("a", "", "", "b", "")]


def test_output_in_files(job: StartJob, tmp_path: Path) -> None:
    running = job("-np", "11", "--output-filename", "logs/run", bash="echo out $FARANDOLE_RANK; echo err >&2; exit 1")
    assert running.end() == 1
    assert running.stdout == ""
    assert "    err" in running.stderr
    folders = sorted((tmp_path / "logs" / "run").iterdir())
    assert [folder.name for folder in folders] == [f"rank.{r:02d}" for r in range(11)]
    assert (folders[3] / "stderr").read_text() in ("err\n", "")  # the first failure may have ended it before
    written = [(folder / "stdout").read_text() for folder in folders]
    assert all(text in (f"out {r}\n", "") for r, text in enumerate(written))


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_trouble(tmp_path: Path, closed: str) -> None:
    line = f"'{sys.executable}' -m farandole run -np 2 bash -c 'echo hello; echo hello >&2; exit 3' {closed}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, timeout=DEADLINE_S, capture_output=True, check=False)
    assert done.returncode == 3
    assert (b"]<stdout>:hello" in done.stdout) == (" >&-" not in f" {closed}")
    assert (b"]<stderr>:hello" in done.stderr) == ("2>&-" not in closed)


def test_a_folder_that_cannot_be_made_is_said(job: StartJob, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    running = job("-np", "2", "--output-filename", "logs", bash="true")
    assert running.end() == 126
    assert "logs/rank.0" in running.stderr


def test_timestamps(job: StartJob) -> None:
    running = job("-np", "1", "--prefix-output-with-timestamp", bash="echo hello")
    assert running.end() == 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\]<stdout>:hello\n", running.stdout)


def test_a_reader_that_goes_away_ends_the_job(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", "yes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 141
        assert process.stderr is not None
        assert b"was killed by SIGPIPE" in process.stderr.read()


def test_ending_at_once_does_not_wait_for_a_reader_that_does_not_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", "yes"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stderr is not None
        deadline = time.monotonic() + DEADLINE_S
        while select.select([], [writer], [], 0.0)[1]:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        assert b"SIGINT: ending 2 workers" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
    os.close(reader)
    os.close(writer)


def test_output_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "farandole", "run", "-np", "1", "yes"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, timeout=DEADLINE_S, check=False
        )
    assert done.returncode == 141
    assert b"farandole: the output cannot be written: No space left on device" in done.stderr


def test_on_a_terminal_tags_have_colour_and_progress_is_seen(tmp_path: Path) -> None:
    main, side = pty.openpty()
    command = ["bash", "-c", "printf '\\r 10%%'; read < pipe; printf '\\r 20%%\\n'"]
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(
        [sys.executable, "-m", "farandole", "run", "-np", "1", *command],
        stdout=side,
        stderr=side,
        cwd=tmp_path,
        env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm"},
    ) as process:
        os.close(side)
        seen = b""
        while b"10%" not in seen:
            seen += os.read(main, 1000)
        with (tmp_path / "pipe").open("w") as pipe:
            pipe.write("\n")
        assert process.wait(DEADLINE_S) == 0
        while b"20%" not in seen:
            seen += os.read(main, 1000)
    os.close(main)
    tag = b"\x1b[36m[0]<stdout>:\x1b[0m"
    assert seen.startswith(tag + b"\r" + tag + b" 10%\r" + tag + b" 20%")
