"""Faults of a modelled job, and planned changes of its hosts."""

from __future__ import annotations

from farandole.control.exits import GenerationEnded, HostLost
from farandole.elastic.membership import job_events, vote
from workbench.elastic import protocol
from workbench.elastic.worker import At, Content, Life
from workbench.elastic.world import JobWorld


def happen(world: JobWorld, kind: str, who: int | str) -> None:
    """Apply one of ``JobWorld.fault_events``."""
    if kind == "plan":
        _plan(world)
        return
    world.budget[kind] -= 1
    if kind == "kill":
        world.end(int(who), -9)
    elif kind == "hang":
        world.workers[int(who)] = world.workers[int(who)]._replace(life=Life.HUNG)
    elif kind in ("fail", "fail in apply"):
        _fail(world, int(who), in_apply=kind != "fail")
    elif kind == "raise":
        _raise(world, int(who))
    elif kind == "notice":
        _withdraw(world, int(who))
    elif kind == "hurry":
        world.pass_time()
    elif kind == "lose lead":
        _succeed(world, str(who))
    else:
        _lose(world, str(who), cut=kind == "cut host")


def _fail(world: JobWorld, worker_id: int, in_apply: bool) -> None:
    """Raise in a worker that goes on; if it is in ``apply``, its state is then neither the old nor the new one."""
    worker = world.workers[worker_id]
    if in_apply:
        worker = protocol.apply(world, worker)
        worker = worker._replace(content=Content(-1 - worker_id, worker.content.steps, worker.content.cursor))
        if world.setup.rules.owns_up:
            worker = worker._replace(whole=False, joined=True)
    world.say(worker_id, GenerationEnded(worker.generation, f"worker {worker_id} has raised"))
    protocol.come_again(world, worker)


def _raise(world: JobWorld, worker_id: int) -> None:
    """Raise in a worker's script: the process reports it, and exits."""
    world.say(
        worker_id,
        GenerationEnded(world.workers[worker_id].generation, f"the script of worker {worker_id} has raised"),
    )
    world.say(worker_id, job_events.WorkerLeft(worker_id, ending=True))
    world.end(worker_id, 1)


def _withdraw(world: JobWorld, worker_id: int) -> None:
    """Tell a worker to exit that waits for the next generation: it reports that, and exits some time later."""
    world.say(worker_id, job_events.WorkerLeft(worker_id, told=True))
    world.end(worker_id, 143)


def _lose(world: JobWorld, host: str, cut: bool) -> None:
    """Lose a host's power, or (``cut``) its cable: in the latter case its workers go on with their state."""
    for worker in list(world.workers.values()):
        if worker.host != host or worker.life == Life.ENDED:
            continue
        goes_on = cut and worker.life == Life.UP
        world.workers[worker.worker_id] = worker._replace(life=Life.CUT_OFF if goes_on else Life.ENDED)
        world.down.pop(worker.worker_id, None)
        world.news.pop(worker.worker_id, None)
    world.gone |= {host}
    world.host_news = (*world.host_news, HostLost(host, f"host {host} is silent"))


def _succeed(world: JobWorld, host: str) -> None:
    """Lose the leader with its host: the next one knows only the last generation, and what agents and workers resend.

    Messages to and from the old leader are lost. Agents kill workers that were no members.
    """
    news = world.host_news
    _lose(world, host, cut=False)
    seats: list[job_events.MemberSlot] = []
    for worker_id in world.members:
        own = world.workers[worker_id].host
        seats.append(job_events.MemberSlot(worker_id, own, sum(seat.host == own for seat in seats)))
    for worker in list(world.workers.values()):
        world.up.pop(worker.worker_id, None)
        world.down.pop(worker.worker_id, None)
        if worker.worker_id not in world.members:
            world.workers[worker.worker_id] = worker._replace(life=Life.ENDED)
            world.news.pop(worker.worker_id, None)
        elif worker.at == At.INIT:
            step = vote.goes_on_from(worker.claim.step, worker.joined)
            world.say(worker.worker_id, job_events.WorkerConnected(worker.worker_id, ready=True, step=step))
    world.controller = world.controller.anew()
    world.turn(job_events.LeadReplaced(world.generation, tuple(seats), max(world.workers) + 1))
    world.turn(HostLost(host, f"host {host} was lost with the previous leader"))
    others = {name: slots for name, slots in world.setup.hosts.items() if name != host}
    world.host_news = (*news, job_events.HostsFound(others))


def _plan(world: JobWorld) -> None:
    """Change the list of hosts; hosts on the list are healthy again."""
    hosts = world.setup.plans[world.planned]
    world.planned += 1
    world.gone = world.gone.difference(hosts)
    world.host_news = (*world.host_news, job_events.HostsFound(hosts))
