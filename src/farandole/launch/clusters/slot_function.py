"""``farandole.run`` on another system's cluster: a function on workers in its slots.

    run_on(RayLender(), FunctionCall(train, (3,), {}), np=4, knobs={"engine": "tcp"})

The launcher's loop runs in the calling thread, as for ``farandole.run``; tasks of the cluster start its agents, not
ssh. Function, results and output are sent over the job's own authenticated connections.

Agents in slots of a cluster, as seen by the loop of a job.

agents = SlotAgents(slots, ("node1", "node2"))
agents.of("node2").explain()
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import cloudpickle
import msgspec

from farandole.cluster.environment import variables_for
from farandole.control.addresses import everywhere, own_endpoints
from farandole.control.agent_messages import StartWorkers, WorkerSpec
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.errors import UsageError
from farandole.launch.agents.agent_config import DIAL_SHARE, LaunchedAgentConfig
from farandole.launch.clusters.allocated_slots import AllocatedSlots
from farandole.launch.clusters.elastic_slots import run_elastic_on
from farandole.launch.clusters.slot import Ticket
from farandole.launch.clusters.slot_provider import SlotProvider
from farandole.launch.function.results import Results, values_of
from farandole.launch.function.task import Task
from farandole.launch.hosts.plan import Job, start_workers, variables_elsewhere
from farandole.launch.job.elastic_agents import AbsentAgent
from farandole.launch.job.loop import NO_SIGNALS
from farandole.launch.job.static_loop import StaticLoop
from farandole.runtime.controller.root import Root
from farandole.settings import Settings
from farandole.topology import Topology


@final
class SlotAgent(AbsentAgent):
    """Agent of one host, which runs as long as the slots there; its code is 1 if one of them is lost."""

    has_ended = True
    """The loop need not wait for it: the slots are waited for when they are released."""
    inherits = True
    """Always true: its workers inherit the variables of the cluster's tasks, not the caller's."""

    def __init__(self, agents: SlotAgents, host: str, bell: int) -> None:
        super().__init__(host)
        self._agents = agents
        self.fds = (bell,)

    def attend(self) -> None:
        """Check for lost slots."""
        self._agents.look()


@final
class SlotAgents:
    """One agent for each host."""

    def __init__(self, slots: AllocatedSlots, hosts: Sequence[str]) -> None:
        self._slots = slots
        self._by_host = {host: SlotAgent(self, host, slots.fd) for host in dict.fromkeys(hosts)}

    def __iter__(self) -> Iterator[SlotAgent]:
        return iter(self._by_host.values())

    def of(self, host: str) -> SlotAgent:
        """The agent of ``host``."""
        return self._by_host[host]

    def look(self) -> None:
        """Mark the agents of hosts with lost slots."""
        for host, why in self._slots.look().items():
            agent = self._by_host[host]
            agent.code, agent.why = 1, agent.why or why


@final
class FunctionCall(NamedTuple):
    """Function to call on every worker, and its arguments."""

    func: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None


def run_on(
    provider: SlotProvider,
    call: FunctionCall,
    np: int | None,
    *,
    output_filename: str = "",
    verbose: bool = False,
    env: Mapping[str, str] | None = None,
    timestamps: bool = False,
    default_np: int = 1,
    knobs: Mapping[str, Any],
) -> list[Any]:
    """Make the call on ``np`` workers in slots of ``provider``; return their return values in rank order.

    Raises the errors of ``farandole.run``, and ``ControlError`` if slots do not connect in time or are lost.
    """
    settings = Settings.resolve(arguments=knobs)
    if np is not None and np < 1:
        raise UsageError(f"np={np} asks for no worker; it must be at least 1")
    if settings.host_discovery_script:
        raise UsageError(f"host_discovery_script: {provider.name} reports its slots itself; leave it out")
    pickled = cloudpickle.dumps((call.func, tuple(call.args), dict(call.kwargs or {})))
    task = Task(list(sys.path), pickled).encode()
    job = Job([], (), settings, None, output_filename, timestamps, verbose, environment=dict(env or {}))
    if settings.is_elastic:
        return run_elastic_on(provider, job, np, task)
    np = default_np if np is None else np
    # Without relays: results are sent directly to this process, so none arrives after its worker's exit report.
    settings = msgspec.structs.replace(settings, tree_radix=max(settings.tree_radix, np))
    job = msgspec.structs.replace(job, settings=settings)
    return _run_in_slots(provider, job, np, task)


def _run_in_slots(provider: SlotProvider, job: Job, np: int, task: bytes) -> list[Any]:
    settings, secret, results = job.settings, new_secret(), Results()
    with contextlib.ExitStack() as held:
        router = held.enter_context(Router(JobKeys.from_secret(secret), everywhere(settings.ports)))
        addresses = own_endpoints(router.address, settings.network_interface)
        ticket = Ticket(tuple(addresses), DIAL_SHARE * settings.start_timeout_s, settings.host_timeout_s, secret)
        slots = held.enter_context(AllocatedSlots(provider, router, ticket, np))
        slots.gather(settings.start_timeout_s)
        job = msgspec.structs.replace(job, hosts=slots.hosts)
        root = Root(router, settings, np)
        root.controller.task, root.controller.on_result = task, results.add
        loop = held.enter_context(StaticLoop(job, SlotAgents(slots, job.hosts), root, NO_SIGNALS))
        config = LaunchedAgentConfig.of(settings, addresses, secret)
        starts = {host: _start(job, secret, host) for host in dict.fromkeys(job.hosts)}
        loop.start_later(starts)
        for host in starts:
            slots.run_agent(host, config)
        outcome = loop.run()
    return values_of(results, np, outcome.words if outcome.status else "", outcome.cause)


def _start(job: Job, secret: str, host: str) -> StartWorkers:
    """Order for the agent of ``host``. Its workers inherit the variables and the folder of the cluster's task there."""
    shared = variables_elsewhere(job)
    specs = [
        WorkerSpec(rank, [], {**shared, **variables_for(Topology.of(rank, job.hosts, 0), "", secret)})
        for rank in range(job.size)
        if job.hosts[rank] == host
    ]
    return start_workers(job, specs, job.size, inherits=True)
