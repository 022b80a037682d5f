"""Workers are killed and come while others train: nothing is lost, and nobody can tell afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from farandole.testing.faults import Fault
from farandole.testing.ledger import History, read
from tests.support.paths import SUPPORT
from tests.support.torch.elastic_training import GLOBAL_BATCH, LENGTH, Plan, Result

SCRIPT = SUPPORT / "torch" / "elastic_training.py"
BATCHES = -(-LENGTH // GLOBAL_BATCH)


def train(launch: Any, folder: Path, np: int, plan: Plan) -> tuple[History, list[Result]]:
    """Run the plan as an elastic job of at most ``np`` workers; returns what was written, and what the workers have."""
    options = ["--min-np", "1", "--max-np", str(np), "--blacklist-cooldown-range", "0", "1", "--start-timeout", "120"]
    arguments = [str(folder), msgspec.json.encode(plan).decode()]
    finished = launch(np, SCRIPT, options=options, arguments=arguments, environment={"OMP_NUM_THREADS": "1"}).ok()
    results = [msgspec.json.decode(path.read_bytes(), type=Result) for path in folder.glob("result-*.json")]
    assert results, finished.stderr
    assert sorted(folder.glob("fault-*")) == sorted(folder / fault.mark for fault in plan.faults), finished.stderr
    return read(folder), results


def check(history: History, results: list[Result]) -> None:
    """Whatever happened: the same as if nothing had."""
    epochs = results[0].epochs
    assert history.problems(LENGTH, epochs) == []
    for result in results:
        assert result.epochs == epochs
        assert result.draws == result.expected.draws
        assert result.rate == pytest.approx(result.expected.rate)
        assert result.scale == result.expected.scale
        for found, expected in zip(result.parameters, result.expected.parameters, strict=True):
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-8)
        assert result.parameters == results[0].parameters
        assert not result.eaten
    assert len(history.steps) == epochs * BATCHES
    assert [len(batch) for batch in history.batches()] == (
        [GLOBAL_BATCH] * (BATCHES - 1) + [LENGTH % GLOBAL_BATCH]
    ) * epochs


def test_all_but_one_are_killed_one_after_another(launch: Any, tmp_path: Path) -> None:
    faults = [Fault(3, 2, "reduce"), Fault(0, 5, "vote"), Fault(1, 9, "voted")]
    history, results = train(launch, tmp_path, 4, Plan(faults, epochs=2))
    check(history, results)
    assert max(history.recovered) >= 4
    assert all(1 <= record.step - start.step <= 1 for start, record in _first_steps(history))


def test_workers_are_killed_while_others_re_form(launch: Any, tmp_path: Path) -> None:
    faults = [Fault(3, 3, "applied"), Fault(2, 3, "reform"), Fault(0, 3, "agree")]
    history, results = train(launch, tmp_path, 4, Plan(faults, epochs=2))
    check(history, results)


def test_a_worker_comes_and_cannot_be_told_from_the_others(launch: Any, tmp_path: Path) -> None:
    faults = [Fault(1, 3, "vote"), Fault(1, 0, "receive")]
    history, results = train(launch, tmp_path, 2, Plan(faults, epochs=2, until_size=2, commit_every=3, loaders=1))
    check(history, results)
    assert len(results) == 2
    assert sorted(result.restarts > 0 for result in results) == [False, True]
    newcomers = [record for record in history.recovered[max(history.recovered)] if record.transfer_bytes]
    assert newcomers, "nobody has received a state"


def test_who_missed_the_end_of_a_vote_gets_the_step_of_the_others(launch: Any, tmp_path: Path) -> None:
    history, results = train(launch, tmp_path, 3, Plan(torn=4))
    check(history, results)
    [one, *others] = sorted(history.recovered[2], key=lambda record: record.rank)
    assert len(others) == 2
    assert one.transfer_bytes > 0
    assert {record.step for record in history.begun[2]} == {5}
    assert history.steps[4] == 1
    assert len(results) == 3


CLASSICAL = """
    import os, signal, sys, torch
    import farandole.torch as hvd

    hvd.init()
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(model.weight, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = hvd.elastic.TorchState(model, optimizer, batch=0)

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, 12):
            if state.batch % 4 == 0:
                state.commit()
            optimizer.zero_grad()
            (model(torch.ones(1, 1).double()) - 3).pow(2).sum().backward()
            if state.batch == 6 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            model.weight.grad = hvd.allreduce(model.weight.grad, name="gradient")
            optimizer.step()
        return model.weight.item()

    weight = train(state)
    other = torch.nn.Parameter(torch.ones(1).double())
    alone = torch.optim.SGD([other], lr=0.1, momentum=0.9)
    for _ in range(12):
        alone.zero_grad()
        (other - 3).pow(2).sum().backward()
        alone.step()
    assert weight == other.item(), (weight, other.item())
    print("the same", hvd.size())
"""


def test_without_votes_training_goes_on_from_the_last_commit(launch: Any) -> None:
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "60", "60"]  # nobody comes in its place
    said = launch(2, CLASSICAL, options=options).ok()
    assert said.lines() == ["the same 1"], said


MADE = """
    import os, signal, sys, time, torch
    import farandole.torch as hvd

    def made():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1)).double()
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def gradients(model, batch):
        inputs = torch.rand(8, 40, generator=torch.Generator().manual_seed(batch)).double()
        model(inputs).square().mean().backward()

    def check_beside_one_process(model, batches):
        alone, other = made()
        for batch in range(batches):
            other.zero_grad()
            gradients(alone, batch)
            other.step()
        for mine, its in zip(model.parameters(), alone.parameters()):
            torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-12)
"""

SHARED_OUT = (
    MADE
    + """
    def kept(optimizer):
        return sum(value.numel() for state in optimizer.state.values() for value in state.values())

    hvd.init()
    model, optimizer = made()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard_state=True, replicas=REPLICAS)
    state = hvd.elastic.TorchState(model, optimizer, batch=0, left_in=0, until=10**6, sizes=[])

    @hvd.elastic.run
    def train(state):
        while state.batch < state.until:
            generation = hvd.statistics()["generation"]
            if not state.sizes or state.sizes[-1] != hvd.size():
                state.sizes.append(hvd.size())
            if state.batch % 4 == 0:
                state.commit()
            optimizer.zero_grad()
            gradients(model, state.batch)
            if state.batch == 6 and generation == 1 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            state.batch += 1
            whole = 2 * sum(p.numel() for p in model.parameters())
            assert kept(optimizer) <= whole * (min(1, REPLICAS / hvd.size()) + 0.05) + 8, (kept(optimizer), whole)
            if state.batch > 12 and hvd.size() == 3 and generation > 1 and not state.left_in:
                state.left_in = generation
                if hvd.rank() == 2:
                    os.kill(os.getpid(), signal.SIGTERM)  # it leaves at its next commit
            if state.left_in and generation > state.left_in and state.until == 10**6:
                state.until = state.batch + 8
            time.sleep(0.02)

    train(state)
    check_beside_one_process(model, state.batch)
    assert state.sizes[:3] == [3, 2, 3], state.sizes
    print("the same", len(state.sizes) > 3)
"""
)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_state_that_ranks_share_out_survives_who_is_killed_who_comes_and_who_leaves(
    launch: Any, replicas: int
) -> None:
    options = ["--min-np", "1", "--max-np", "3", "--blacklist-cooldown-range", "0", "1"]
    script = SHARED_OUT.replace("REPLICAS", str(replicas))
    said = launch(3, script, options=options, environment={"OMP_NUM_THREADS": "1"}).ok()
    assert said.lines()
    assert set(said.lines()) == {"the same True"}, said


DOWN_TO_ONE = (
    MADE
    + """
    hvd.init()
    model, optimizer = made()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard_state=True)
    state = hvd.elastic.TorchState(model, optimizer, batch=0, until=10**6, sizes=[])

    @hvd.elastic.run
    def train(state):
        generation = hvd.statistics()["generation"]
        state.sizes.append(hvd.size())
        if generation >= 3:
            state.until = state.batch + 6
        while state.batch < state.until:
            state.check_host_updates() if CHECKS else state.commit()
            optimizer.zero_grad()
            gradients(model, state.batch)
            optimizer.step()
            state.batch += 1
            if state.batch == 5 and generation == 1 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)

    train(state)
    check_beside_one_process(model, state.batch)
    assert {float(each["step"]) for each in optimizer.state.values()} == {float(state.batch)}
    print("the same", state.sizes)
"""
)


@pytest.mark.parametrize("checks", [False, True], ids=["commit", "check_host_updates"])
def test_a_state_that_ranks_share_out_survives_that_one_is_left_alone(launch: Any, checks: bool) -> None:
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1"]
    script = DOWN_TO_ONE.replace("CHECKS", str(checks))
    said = launch(2, script, options=options, environment={"OMP_NUM_THREADS": "1"}).ok()
    assert set(said.lines()) == {"the same [2, 1, 2]"}, said


FIRST = """
    import os, signal, torch
    import farandole.torch as hvd
    from farandole.elastic.worker import transfer

    hvd.init()
    own = hvd.rank() + 1.0
    model = torch.nn.Linear(4096, 1, bias=False)
    torch.nn.init.constant_(model.weight, own)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    state = hvd.elastic.TorchState(model, optimizer)
    transfer.stripes.__defaults__, packed = (4096,), []
    pack = transfer._pack

    def pack_one(*arguments):
        if packed and own == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # the others have a quarter of its model
        packed.append(arguments)
        return pack(*arguments)

    transfer._pack = pack_one

    @hvd.elastic.run
    def train(state):
        return hvd.rank(), model.weight.unique().tolist()

    print(int(own), *train(state), flush=True)
"""


def test_when_the_first_transfer_is_cut_off_the_next_oldest_begins_the_job_with_what_it_had(launch: Any) -> None:
    said = launch(3, FIRST, options=["--min-np", "2", "--max-np", "3"]).ok()
    assert {"2 0 [2.0]", "3 1 [2.0]"} <= set(said.lines()), said


def _first_steps(history: History) -> list[tuple[Any, Any]]:
    return [(history.begun[g][0], records[0]) for g, records in history.recovered.items()]
