"""Workers are killed whose optimizer keeps its state in parts, each on two ranks: bits, steps and what is said."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farandole.testing.faults import Fault
from farandole.testing.ledger import read
from tests.support.on_ranks import on_hosts
from tests.support.paths import SUPPORT
from tests.support.torch.elastic_training import LENGTH, Plan, Result

SCRIPT = SUPPORT / "torch" / "elastic_training.py"
ALONE = ["--min-np", "1", "--blacklist-cooldown-range", "60", "60"]
"""No worker takes the place of one that was killed: the same ranks train the same steps in every run."""

KILLED = {
    "in the reduction, then after the vote": Plan([Fault(1, 3, "reduce"), Fault(0, 9, "voted")]),
    "before the vote, then with the step applied": Plan([Fault(2, 4, "vote"), Fault(2, 8, "applied")]),
    "after a vote that the owner of the lost copy has not seen": Plan([Fault(2, 5, "voted")], torn=4),
    "while others re-form": Plan([Fault(3, 3, "applied"), Fault(1, 3, "reform")]),
}


@pytest.mark.parametrize("plan", KILLED.values(), ids=KILLED)
def test_a_fault_costs_what_it_costs_the_replicated_optimizer_to_the_last_bit(
    launch: Any, tmp_path: Path, plan: Plan
) -> None:
    found = []
    for replicas in (0, 2):
        folder = tmp_path / str(replicas)
        folder.mkdir()
        told = msgspec.structs.replace(plan, replicas=replicas)
        arguments = [str(folder), msgspec.json.encode(told).decode()]
        options = [*ALONE, "--max-np", "4"]
        finished = launch(4, SCRIPT, options=options, arguments=arguments, environment={"OMP_NUM_THREADS": "1"}).ok()
        assert sorted(folder.glob("fault-*")) == sorted(folder / fault.mark for fault in plan.faults), finished.stderr
        results = [msgspec.json.decode(path.read_bytes(), type=Result) for path in folder.glob("result-*.json")]
        history = read(folder)
        assert history.problems(LENGTH, plan.epochs) == []
        assert results, finished.stderr
        assert all(each.parameters == results[0].parameters for each in results)
        begun = [(records[0].step, records[0].size) for records in history.begun.values()]
        found.append((begun, results[0].parameters, results[0].draws, results[0].rate, results[0].scale))
    assert found[0] == found[1]


MADE = """
    import os, signal, torch
    import farandole.torch as hvd
    from farandole.runtime.session.init import current
    from farandole.torch import state_shards

    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard_state=SHARD, replicas=1 + SHARD)
    state = hvd.elastic.TorchState(model, optimizer, batch=0, begun=[])

    def kept():
        return sum(value.numel() for state in optimizer.state.values() for value in state.values())

    def compute():
        generator = torch.Generator().manual_seed(100 * state.batch + hvd.rank())
        optimizer.zero_grad()
        model(torch.rand(8, 40, generator=generator).double()).square().mean().backward()

    def killed():
        os.kill(os.getpid(), signal.SIGKILL)

    def said():
        print(state.begun, sum(p.sum().item() * i for i, p in enumerate(model.parameters(), 1)), flush=True)
"""

WHILE_EXCHANGED = (
    MADE
    + """
    state_shards.CHUNK_BYTES, rounds, run = 3000, [], state_shards._Round.gather_pieces

    def run_or_die(*given):
        rounds.append(run(*given))
        if len(rounds) == 3 and state.batch == 5 and hvd.rank() == 1 and hvd.size() == 3:
            killed()  # others have some of the values of the next step, and not all

    state_shards._Round.gather_pieces = run_or_die

    @hvd.elastic.run
    def train(state):
        state.begun.append((state.batch, hvd.size()))
        while state.batch < 12:
            state.check_host_updates()
            compute()
            if not SHARD and state.batch == 5 and hvd.rank() == 1 and hvd.size() == 3:
                killed()
            rounds.clear()
            optimizer.step()
            state.batch += 1

    train(state)
    said()
"""
)


def test_a_worker_is_killed_while_the_parameters_travel(launch: Any) -> None:
    found = []
    for shard in (False, True):
        script = WHILE_EXCHANGED.replace("SHARD", str(shard))
        lines = launch(3, script, options=[*ALONE, "--max-np", "3"]).ok().lines()
        assert len(lines) == 2
        assert len(set(lines)) == 1
        found.append(lines[0])
    assert found[0] == found[1]
    assert found[0].startswith("[(0, 3), (5, 2)]")


NEIGHBOURS = (
    MADE
    + """
    @hvd.elastic.run
    def train(state):
        pids = hvd.allgather_object(os.getpid(), name="pids")
        state.begun.append((state.batch, hvd.size()))
        while state.batch < 12:
            if state.batch in COMMITS:
                state.commit()
            compute()
            assert not SHARD or hvd.size() < 4 or kept() <= 0.55 * 2 * sum(p.numel() for p in model.parameters()) + 8
            if state.batch == DIE_AT and hvd.size() == 4 and hvd.rank() == 1:
                os.kill(pids[2], signal.SIGKILL)
                killed()
            optimizer.step()
            state.batch += 1

    train(state)
    said()
"""
)


def test_two_who_keep_one_part_are_killed_together_and_all_go_back_to_the_last_commit(launch: Any) -> None:
    options, found = [*ALONE, "--max-np", "4"], []
    for shard, die_at in ((False, 4), (True, 7)):  # what is left of either has the state of four steps
        script = NEIGHBOURS.replace("SHARD", str(shard)).replace("DIE_AT", str(die_at))
        finished = launch(4, script.replace("COMMITS", "(0, 4)"), options=options).ok()
        assert len(finished.lines()) == 2
        assert len(set(finished.lines())) == 1
        found.append(finished.lines()[0])
    assert found[0] == found[1]
    assert found[0].startswith("[(0, 4), (4, 2)]")
    assert "part 1 of optimizer. The training goes back to its last commit, of step 4" in finished.stderr
    failed = launch(4, script.replace("COMMITS", "()"), options=options)
    assert failed.code
    assert "no commit() had copied the state before. Start the job again" in failed.stderr


def test_all_ranks_of_a_host_are_killed_together_and_their_parts_are_on_the_other(tmp_path: Path) -> None:
    script, found = tmp_path / "script.py", []
    for shard in (False, True):
        text = NEIGHBOURS.replace("SHARD", str(shard)).replace("DIE_AT", "7").replace("COMMITS", "()")
        text = text.replace("hvd.rank() == 1", "hvd.rank() == 3")
        script.write_text(textwrap.dedent(text))
        job = ["-H", "node1:2,node2:2", *ALONE, "--max-np", "4", sys.executable, str(script)]
        done = on_hosts(2, [sys.executable, "-m", "farandole", "run", *job], 120.0)
        assert done.returncode == 0, done.stderr
        lines = {line.partition(":")[2] for line in done.stdout.splitlines()}
        assert len(lines) == 1, done.stdout
        found.append(lines.pop())
    assert found[0] == found[1]
    assert found[0].startswith("[(0, 4), (7, 2)]")
