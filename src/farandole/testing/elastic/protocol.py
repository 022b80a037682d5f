"""What a worker of the model does: obey the controller's words, and go on as far as the data plane lets it."""

from __future__ import annotations

from typing import cast

from farandole.elastic.membership import happenings, vote
from farandole.elastic.membership.vote import NEW
from farandole.errors import FarandoleError
from farandole.testing.elastic import invariants
from farandole.testing.elastic.worker import IN_GENERATION, At, Content, Simulated, Step
from farandole.testing.elastic.world import World


def obey(world: World, place: int) -> None:
    """It takes the next of the controller's words in."""
    (word, generation, places), *rest = world.down[place]
    world.down[place] = tuple(rest)
    worker = world.workers[place]
    if word in ("refuse", "dismiss"):
        world.end(place, 0 if word == "dismiss" else 1)
    elif word == "greet":
        world.workers[place] = worker._replace(at=At.BUILDING, joined=True)
    elif word == "form":
        entered = worker._replace(at=At.AGREEING, generation=generation, members=places, change_due=False, sources=())
        world.workers[place] = entered
        world.come_to(entered, (entered.claim, entered.content))
    elif generation == worker.generation and worker.at in IN_GENERATION:
        if word == "announce":
            world.workers[place] = worker._replace(change_due=True)
        else:
            come_again(world, worker)


def move(world: World, place: int) -> None:
    """It goes on by itself."""
    worker = world.workers[place]
    if worker.at == At.IMPORTING:
        world.workers[place] = worker._replace(at=At.INIT)
        world.say(place, happenings.Came(place, ready=False))
    elif worker.at == At.BUILDING:
        world.workers[place] = worker._replace(at=At.INIT)
        world.say(place, happenings.Came(place, ready=True))
    elif worker.at == At.COMPUTING:
        cast_vote(world, worker)
    elif not world.is_complete(worker):
        come_again(world, worker)
    elif worker.at == At.AGREEING:
        _agree(world, worker)
    elif worker.at == At.RECEIVING:
        _receive(world, worker)
    else:
        world.workers[place] = applied = apply(world, worker)
        if applied.change_due:
            come_again(world, applied)
        else:
            compute(world, applied)


def come_again(world: World, worker: Simulated) -> None:
    """Its generation is over, for it: ``shutdown()`` and ``init()``."""
    world.workers[worker.place] = worker._replace(at=At.INIT)
    world.say(worker.place, happenings.Left(worker.place))
    step = vote.goes_on_from(worker.claim.step, worker.joined)
    world.say(worker.place, happenings.Came(worker.place, ready=True, step=step))


def compute(world: World, worker: Simulated) -> None:
    """Begin the next step, or end as one who has trained on everything."""
    if world.batch(worker) is None:
        world.say(worker.place, happenings.Left(worker.place))
        invariants.check_finished(world, worker)
        world.end(worker.place, 0)
    elif world.setup.in_detail:
        world.workers[worker.place] = worker._replace(at=At.COMPUTING)
    else:
        cast_vote(world, worker)


def cast_vote(world: World, worker: Simulated) -> None:
    """Its part of the step is there."""
    batch = world.batch(worker)
    assert batch is not None
    rank, size = worker.members.index(worker.place), len(worker.members)
    voting = worker._replace(at=At.VOTING)
    world.workers[worker.place] = voting
    world.come_to(voting, vote.Part(worker.step, (len(batch.places(rank, size)),), worker.change_due))


def apply(world: World, worker: Simulated) -> Simulated:
    """The worker after the step whose vote it has seen the end of."""
    rules = world.setup.rules
    outcome = rules.count(cast("list[vote.Part]", world.said_at(worker)))
    batch, content = world.batch(worker), worker.content
    assert batch is not None
    taken = Step(batch.start, batch.stop, len(worker.members))
    cursor = content.cursor + outcome.samples[0] * rules.moves_cursor
    content = Content(content.origin, (*content.steps, taken), cursor)
    world.best = max(world.best, outcome.step)
    return worker._replace(content=content, step=outcome.step, change_due=outcome.change_due)


def _agree(world: World, worker: Simulated) -> None:
    """All have said what state they are in."""
    said = cast("list[tuple[vote.Claim, Content]]", world.said_at(worker))
    claims = [claim for claim, _ in said]
    try:
        agreement = world.setup.rules.agree(claims)
    except FarandoleError:
        world.end(worker.place, 1)
        return
    invariants.check_agreed(world, agreement, claims)
    rank = worker.members.index(worker.place)
    sources = tuple(worker.members[source] for source in agreement.sources)
    agreed = worker._replace(step=max(0, agreement.step), sources=sources)
    if rank in agreement.receivers:
        receiving = agreed._replace(at=At.RECEIVING)
        if agreement.step > NEW:  # else it goes back to what it began with, should it not get all
            owns_up = world.setup.rules.owns_up
            receiving = receiving._replace(whole=agreed.whole and not owns_up, joined=agreed.joined or owns_up)
            receiving = receiving._replace(content=Content(-1 - worker.place))
        world.workers[worker.place] = receiving
        return
    point = (worker.generation, "state", 0)
    world.met[point] = (*world.met.get(point, ()), (worker.place, worker.content))
    compute(world, agreed._replace(whole=True))


def _receive(world: World, worker: Simulated) -> None:
    """The sources have sent all they have."""
    said = cast("dict[int, Content]", dict(world.met[world.point(worker)]))
    content = said[worker.sources[0]]
    if not world.setup.rules.hands_over_cursor:
        content = content._replace(cursor=0)
    compute(world, worker._replace(content=content, whole=True))
