"""Invariants of every state of an elastic job, numbered like the promises in docs/design/elasticity.md."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.elastic.membership import vote
from farandole.elastic.membership.actions import Decision
from farandole.elastic.membership.vote import Agreement, VoteClaim
from workbench.elastic.worker import Content, Life, Simulated
from workbench.elastic.world import JobWorld


def check(world: JobWorld) -> None:
    """Check what must hold between any two atomic steps."""
    whole = _holders(world)
    for worker in whole:
        _check_samples(world, worker)
    steps = [worker.step for worker in whole]
    if steps and max(steps) - min(steps) > 1 and not world.is_hurried:
        world.faults.append(f"P3: workers are more than one step apart: {steps}")
    seen: dict[tuple[int, int], Content] = {}
    for worker in whole:
        if seen.setdefault((worker.generation, worker.step), worker.content) != worker.content:
            world.faults.append(f"P5: two workers differ after the same step: {worker}")


def _holders(world: JobWorld) -> list[Simulated]:
    """Healthy workers that have the state, except dismissed ones, whose host is not to be used."""
    return [
        worker
        for worker in world.workers.values()
        if worker.life == Life.UP
        and worker.whole
        and not any(w[0] == "dismiss" for w in world.down.get(worker.worker_id, ()))
    ]


def _check_samples(world: JobWorld, worker: Simulated) -> None:
    """Check that every sample below the cursor is committed once, and none above it."""
    content, position = worker.content, 0
    for step in content.steps:
        if step.start != position:
            world.faults.append(f"P4: samples are lost or taken twice: {worker}")
        position = step.stop
    if content.cursor != position or len(content.steps) != worker.step:
        world.faults.append(f"P4: the cursor is not where the samples are, or a step counts twice: {worker}")


def check_formed(world: JobWorld, worker_ids: Sequence[int]) -> None:
    """Check that rank 0 has the state, and that a member has seen the last step if any healthy worker has."""
    steps = {worker_id: vote.goes_on_from(each.claim.step, each.joined) for worker_id, each in world.workers.items()}
    members = [steps[worker_id] for worker_id in worker_ids if world.workers[worker_id].life != Life.ENDED]
    if len(members) < len(worker_ids) or world.is_hurried:
        return
    if members[0] == vote.NEW:
        world.faults.append(f"rank 0 of {worker_ids} has not the state of the job: {steps}")
    newest = max((each.step for each in world.workers.values() if each.life == Life.UP and each.whole), default=0)
    if max(members) < newest:
        world.faults.append(f"P3: {worker_ids} have not the last step, and others who are well have it: {steps}")


def check_agreed(world: JobWorld, agreement: Agreement, claims: Sequence[VoteClaim]) -> None:
    """Check that a generation goes on from the newest state that any of its members has."""
    if agreement.step < max(claim.step for claim in claims):
        world.faults.append(f"P3: a step is undone that a member still has: {claims}, {agreement}")
    if agreement.step < world.best - 1:
        world.faults.append(f"P3: more than one step is lost: there was step {world.best}, and now {agreement}")
    if agreement.diverged and not world.is_hurried:
        world.faults.append(f"P5: workers diverged: {agreement}")


def check_finished(world: JobWorld, worker: Simulated) -> None:
    """Check a worker that has finished: it has trained on every sample, and fixed batches never changed."""
    setup, steps = world.setup, worker.content.steps
    if sum(step.stop - step.start for step in steps) != setup.samples:
        world.faults.append(f"P4: a worker has finished, and did not train on all samples: {worker}")
    starts = [step.start for step in steps]
    if setup.fixed_batch and starts != list(range(0, setup.samples, setup.batch)):
        world.faults.append(f"P6: the batches are not those of an undisturbed run: {worker}")


def check_spared(world: JobWorld, decision: Decision, worker_ids: Sequence[int]) -> None:
    """Check that no healthy worker with a part in the job is ended, unless the list of hosts requires it."""
    for worker_id in worker_ids:
        worker = world.workers.get(worker_id)
        is_well = worker is not None and worker.life == Life.UP and worker.generation > 0
        if is_well and not world.planned and not world.is_hurried:
            world.faults.append(f"P1: a worker that is well is ended: {decision}, {worker}")


def check_end(world: JobWorld, decision: Decision) -> None:
    """Check that the job ends only when it cannot go on."""
    able = _holders(world)
    limits = world.setup.policy
    if able and limits.min_np == 1 and not limits.reset_limit and not world.is_hurried:
        world.faults.append(f"the job ends, and could go on: {decision}, {able}")
