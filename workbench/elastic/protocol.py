"""Protocol of a modelled worker: obey the controller's messages, and go on as far as the data plane allows."""

from __future__ import annotations

from typing import cast

from farandole.elastic.membership import job_events, vote
from farandole.elastic.membership.vote import NEW
from farandole.errors import FarandoleError
from workbench.elastic import invariants
from workbench.elastic.worker import IN_GENERATION, At, Content, HistoryStep, Simulated
from workbench.elastic.world import JobWorld


def obey(world: JobWorld, worker_id: int) -> None:
    """Let a worker process the next message of the controller."""
    (word, generation, worker_ids), *rest = world.down[worker_id]
    world.down[worker_id] = tuple(rest)
    worker = world.workers[worker_id]
    if word in ("refuse", "dismiss"):
        world.end(worker_id, 0 if word == "dismiss" else 1)
    elif word == "greet":
        world.workers[worker_id] = worker._replace(at=At.BUILDING, joined=True)
    elif word == "form":
        entered = worker._replace(
            at=At.AGREEING, generation=generation, members=worker_ids, change_due=False, sources=()
        )
        world.workers[worker_id] = entered
        world.come_to(entered, (entered.claim, entered.content))
    elif generation == worker.generation and worker.at in IN_GENERATION:
        if word == "announce":
            world.workers[worker_id] = worker._replace(change_due=True)
        else:
            come_again(world, worker)


def move(world: JobWorld, worker_id: int) -> None:
    """Let a worker make one atomic step by itself."""
    worker = world.workers[worker_id]
    if worker.at == At.IMPORTING:
        world.workers[worker_id] = worker._replace(at=At.INIT)
        world.say(worker_id, job_events.WorkerConnected(worker_id, ready=False))
    elif worker.at == At.BUILDING:
        world.workers[worker_id] = worker._replace(at=At.INIT)
        world.say(worker_id, job_events.WorkerConnected(worker_id, ready=True))
    elif worker.at == At.COMPUTING:
        cast_vote(world, worker)
    elif not world.is_complete(worker):
        come_again(world, worker)
    elif worker.at == At.AGREEING:
        _agree(world, worker)
    elif worker.at == At.RECEIVING:
        _receive(world, worker)
    else:
        world.workers[worker_id] = applied = apply(world, worker)
        if applied.change_due:
            come_again(world, applied)
        else:
            compute(world, applied)


def come_again(world: JobWorld, worker: Simulated) -> None:
    """Leave a generation that is over for this worker, and reconnect: ``shutdown()`` and ``init()``."""
    world.workers[worker.worker_id] = worker._replace(at=At.INIT)
    world.say(worker.worker_id, job_events.WorkerLeft(worker.worker_id))
    step = vote.goes_on_from(worker.claim.step, worker.joined)
    world.say(worker.worker_id, job_events.WorkerConnected(worker.worker_id, ready=True, step=step))


def compute(world: JobWorld, worker: Simulated) -> None:
    """Begin the next step, or exit after training on everything."""
    if world.batch(worker) is None:
        world.say(worker.worker_id, job_events.WorkerLeft(worker.worker_id))
        invariants.check_finished(world, worker)
        world.end(worker.worker_id, 0)
    elif world.setup.in_detail:
        world.workers[worker.worker_id] = worker._replace(at=At.COMPUTING)
    else:
        cast_vote(world, worker)


def cast_vote(world: JobWorld, worker: Simulated) -> None:
    """Contribute a worker's part of the step to the vote."""
    batch = world.batch(worker)
    assert batch is not None
    rank, size = worker.members.index(worker.worker_id), len(worker.members)
    voting = worker._replace(at=At.VOTING)
    world.workers[worker.worker_id] = voting
    world.come_to(voting, vote.Vote(worker.step, (len(batch.positions(rank, size)),), worker.change_due))


def apply(world: JobWorld, worker: Simulated) -> Simulated:
    """Apply the step whose vote is complete; returns the worker after it."""
    rules = world.setup.rules
    outcome = rules.count(cast("list[vote.Vote]", world.said_at(worker)))
    batch, content = world.batch(worker), worker.content
    assert batch is not None
    taken = HistoryStep(batch.start, batch.stop, len(worker.members))
    cursor = content.cursor + outcome.samples[0] * rules.moves_cursor
    content = Content(content.origin, (*content.steps, taken), cursor)
    world.best = max(world.best, outcome.step)
    return worker._replace(content=content, step=outcome.step, change_due=outcome.change_due)


def _agree(world: JobWorld, worker: Simulated) -> None:
    """Agree on a state, after all members have claimed theirs."""
    said = cast("list[tuple[vote.VoteClaim, Content]]", world.said_at(worker))
    claims = [claim for claim, _ in said]
    try:
        agreement = world.setup.rules.agree(claims)
    except FarandoleError:
        world.end(worker.worker_id, 1)
        return
    invariants.check_agreed(world, agreement, claims)
    rank = worker.members.index(worker.worker_id)
    sources = tuple(worker.members[source] for source in agreement.sources)
    agreed = worker._replace(step=max(0, agreement.step), sources=sources)
    if rank in agreement.receivers:
        receiving = agreed._replace(at=At.RECEIVING)
        if agreement.step > NEW:  # else it keeps its earlier state, even if it does not get all
            owns_up = world.setup.rules.owns_up
            receiving = receiving._replace(whole=agreed.whole and not owns_up, joined=agreed.joined or owns_up)
            receiving = receiving._replace(content=Content(-1 - worker.worker_id))
        world.workers[worker.worker_id] = receiving
        return
    point = (worker.generation, "state", 0)
    world.met[point] = (*world.met.get(point, ()), (worker.worker_id, worker.content))
    compute(world, agreed._replace(whole=True))


def _receive(world: JobWorld, worker: Simulated) -> None:
    """Take over the state that the sources have sent."""
    said = cast("dict[int, Content]", dict(world.met[world.point(worker)]))
    content = said[worker.sources[0]]
    if not world.setup.rules.hands_over_cursor:
        content = content._replace(cursor=0)
    compute(world, worker._replace(content=content, whole=True))
