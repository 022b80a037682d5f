"""The harness itself: exchange, results, and what it says when ranks raise, die or hang."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any

import pytest

from farandole.errors import StartError
from farandole.testing import harness
from farandole.testing.harness import Died, RanksFailedError, run_ranks
from farandole.testing.leaks import no_leaks
from farandole.testing.rank import RankContext


def test_ranks_exchange_bytes_and_return_values_in_rank_order() -> None:
    def program(member: RankContext, word: str) -> tuple[int, list[bytes], list[bytes]]:
        everyone = member.exchange(f"{word} {member.rank}".encode())
        mine = tuple(r for r in range(member.size) if r % 2 == member.rank % 2)
        return member.rank, everyone, member.exchange_among("half", mine)(b"%d" % member.rank)

    with no_leaks():
        results = run_ranks(program, 3, "hello")
    said = [b"hello 0", b"hello 1", b"hello 2"]
    assert results == [(0, said, [b"0", b"2"]), (1, said, [b"1"]), (2, said, [b"0", b"2"])]


def test_an_exception_comes_back_with_its_traceback() -> None:
    def program(member: RankContext) -> None:
        if member.rank == 1:
            raise KeyError("no such thing")

    with no_leaks(), pytest.raises(RanksFailedError, match=r"rank 1 raised(.|\n)*no such thing"):
        run_ranks(program, 2)


def test_a_death_fails_the_run_unless_it_is_expected() -> None:
    def program(member: RankContext) -> str:
        if member.rank == 1:
            os._exit(3)
        with pytest.raises(StartError, match=r"ranks \[1\] have ended") as caught:
            member.exchange(b"")
        return str(caught.value)

    with no_leaks(), pytest.raises(RanksFailedError, match="rank 1 ended with 3"):
        run_ranks(program, 2)
    _, died = run_ranks(program, 2, may_die=[1])
    assert isinstance(died, Died)
    assert died.code == 3


def test_a_hang_is_ended_and_shows_its_stack() -> None:
    def waits_for_ever(member: RankContext) -> None:
        if member.rank == 1:
            threading.Event().wait()

    with no_leaks(), pytest.raises(RanksFailedError, match=r"rank 1 had no result after(.|\n)*in waits_for_ever"):
        run_ranks(waits_for_ever, 2, timeout_s=6.0)


def test_no_leaks_names_what_is_left() -> None:
    read, write = os.pipe()
    os.close(write)
    try:
        with pytest.raises(AssertionError, match="descriptors"), no_leaks(settle_s=0.0):
            write = os.dup(read)
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize(
    ("program", "limit_s", "words"),
    [
        ("import signal; signal.pause()", 1, "0 of 1 ranks came in 1 s"),
        ("import socket, sys; socket.socket(1).connect(sys.argv[1])", 60, "0 of 1 ranks came before one ended"),
        ("import signal, socket, sys; s = socket.socket(1); s.connect(sys.argv[1]); signal.pause()", 1, "came in 1 s"),
    ],
    ids=["never comes", "ends", "says nothing"],
)
def test_ranks_that_do_not_come_are_ended_and_leave_nothing(
    program: str, limit_s: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "_START_S", limit_s)
    started: list[subprocess.Popen[bytes]] = []

    def start(_: int, command: list[str], environment: Mapping[str, str], output: IO[bytes]) -> list[Any]:
        command = [sys.executable, "-c", program, command[-1]]
        started.append(subprocess.Popen(command, env=dict(environment), stdout=output, stderr=output))
        return started

    with pytest.raises(RanksFailedError, match=words):
        run_ranks(lambda _: None, 1, start=start)
    assert started[0].returncode is not None
