"""A script that raises is the cause, whoever else ends because of it."""

from __future__ import annotations

from tests.conftest import Launch


def test_a_rank_that_raises_is_named_and_not_those_that_waited_for_it(launch: Launch) -> None:
    script = """
        from farandole.runtime.basics import barrier, rank
        from farandole.runtime.session import init
        init()
        barrier()
        if rank() == 1:
            raise ValueError("mine")
        barrier()
    """
    ended = launch(2, script)
    assert ended.code == 1
    words = ended.stderr.partition("farandole: rank ")[2]
    assert words.startswith("1 on ")
    assert "exited with code 1" in words
    assert "ValueError: mine" in words
