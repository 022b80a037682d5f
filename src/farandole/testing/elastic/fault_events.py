"""What befalls a job of the model: faults, and what people plan."""

from __future__ import annotations

from farandole.elastic.membership import job_events
from farandole.testing.elastic import protocol
from farandole.testing.elastic.worker import Content, Life
from farandole.testing.elastic.world import JobWorld


def happen(world: JobWorld, kind: str, who: int | str) -> None:
    """One of ``JobWorld.fault_events`` comes true."""
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
    elif kind == "hurry":
        world.pass_time()
    else:
        _lose(world, str(who), cut=kind == "cut host")


def _fail(world: JobWorld, worker_id: int, in_apply: bool) -> None:
    """Something raises in the process, which goes on; in ``apply``, its state is then neither that nor this."""
    worker = world.workers[worker_id]
    if in_apply:
        worker = protocol.apply(world, worker)
        worker = worker._replace(content=Content(-1 - worker_id, worker.content.steps, worker.content.cursor))
        if world.setup.rules.owns_up:
            worker = worker._replace(whole=False, joined=True)
    world.say(worker_id, job_events.GenerationEnded(worker.generation, f"worker {worker_id} has raised"))
    protocol.come_again(world, worker)


def _raise(world: JobWorld, worker_id: int) -> None:
    """Its script raises: the process says so, and ends."""
    world.say(
        worker_id,
        job_events.GenerationEnded(world.workers[worker_id].generation, f"the script of worker {worker_id} has raised"),
    )
    world.say(worker_id, job_events.WorkerLeft(worker_id, ending=True))
    world.end(worker_id, 1)


def _lose(world: JobWorld, host: str, cut: bool) -> None:
    """Power, or the cable: in that case its workers go on with what they have."""
    for worker in list(world.workers.values()):
        if worker.host != host or worker.life == Life.ENDED:
            continue
        goes_on = cut and worker.life == Life.UP
        world.workers[worker.worker_id] = worker._replace(life=Life.CUT_OFF if goes_on else Life.ENDED)
        world.down.pop(worker.worker_id, None)
        world.news.pop(worker.worker_id, None)
    world.gone |= {host}
    world.host_news = (*world.host_news, job_events.HostLost(host, f"host {host} is silent"))


def _plan(world: JobWorld) -> None:
    """The list of hosts changes; those that are on it are well again."""
    hosts = world.setup.plans[world.planned]
    world.planned += 1
    world.gone = world.gone.difference(hosts)
    world.host_news = (*world.host_news, job_events.HostsFound(hosts))
