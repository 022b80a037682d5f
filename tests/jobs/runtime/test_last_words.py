"""Who ends a job is the cause, whoever else ends because of it, and whichever process the kernel ends first."""

from __future__ import annotations

import pytest

from farandole.control.messages import Leave
from tests.support.launching import Launch
from tests.unit.runtime.test_controller import Job

PRELUDE = """
import atexit, contextlib, os, select, sys
from farandole.runtime.collectives.basics import barrier, rank
from farandole.runtime.session.init import current, init

def outlast_the_others():
    for other in "02":
        with open(other) as file, contextlib.suppress(ProcessLookupError):
            select.select([os.pidfd_open(int(file.read()))], [], [], 20)

place = os.environ["FARANDOLE_RANK"]
with open(place, "w") as file:
    file.write(str(os.getpid()))
if place == "1":
    atexit.register(outlast_the_others)  # runs after init's own, which leaves the job
init()
"""
PLANNED = """
engine = current().planned.engine(0, "p")
def meet():
    with current().planned.lane(0, "p", "p: ").next("barrier"):
        engine.barrier()
"""
NEGOTIATED = """
meet = barrier
"""


@pytest.mark.parametrize("meeting", [NEGOTIATED, PLANNED], ids=["negotiated", "planned"])
@pytest.mark.parametrize(
    ("end", "code", "words"),
    [('raise ValueError("mine")', 1, "ValueError: mine"), ('print("mine", file=sys.stderr); sys.exit(3)', 3, "mine")],
    ids=["raises", "exits"],
)
def test_the_rank_that_ends_is_named_and_not_those_that_waited_for_it(
    launch: Launch, meeting: str, end: str, code: int, words: str
) -> None:
    script = f"{PRELUDE}{meeting}meet()\nif rank() == 1:\n    {end}\nmeet()\n"
    ended = launch(3, script, options=["--grace-seconds", "30"])
    first, *rest = ended.stderr.partition("farandole: rank ")[2].splitlines()
    assert first.startswith("1 on ")
    assert f"exited with code {code}" in first
    assert rest[[line.startswith("after that") for line in rest].index(True) - 1].strip() == words
    assert ended.code == code


def test_a_script_that_ends_well_after_its_job_has_failed_says_so(launch: Launch) -> None:
    script = f"""
from farandole.errors import AbortError
from farandole.runtime.collectives.basics import rank
from farandole.runtime.session.init import current, init
init()
{PLANNED}
meet()
try:
    if not rank():
        meet()
except AbortError:  # as a framework does that drops what it has computed in the background
    pass
"""
    ended = launch(2, script).ok()
    assert (
        "rank 0: the script ends without a traceback, but its last collectives have failed: rank 1 on" in ended.stderr
    )
    assert "rank 1: the script" not in ended.stderr


def test_who_followed_others_comes_after_them_though_its_news_came_before() -> None:
    job = Job(3)
    job.form()
    job.say("z", Leave(1, "rank 2 on a gave up: rank 1 on a has left the group", following=True))
    job.say("y", Leave(1))
    assert job.controller.left() == [1, 2]
