"""Slot of a cluster, seen from the task that holds it: the code that Ray, Dask and Spark run for us.

    hold(ticket, slot=3)            # in a task of the cluster; returns when the run is over

The task connects to the process that requested workers, and waits. The first slot of each host is then ordered to run
the agent there, which starts the workers of all slots of the host; the other slots only keep their resources. So
workers are separate processes: they can be killed in any state, and leave nothing in the cluster's processes.

One thread, the task's own, runs all of it. The agent exits when its standard input closes, and so with this process,
however that ends; ``Dealer.recv`` raises when the other side is lost. There is no other wait.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import final

from farandole.control.channel import Dealer
from farandole.control.dial import first_answering
from farandole.control.entry import entry_command
from farandole.control.keys import JobKeys
from farandole.control.process import describe
from farandole.control.slot_messages import SLOT, AgentOver, HostAgent, SlotHello, SlotOver
from farandole.errors import ControlError, UsageError
from farandole.launch.agents import agent_config
from farandole.launch.agents.agents import END_S, SAID_BYTES
from farandole.launch.function import task
from farandole.version import __version__

DEVICES = "CUDA_VISIBLE_DEVICES"


@final
@dataclass(frozen=True)
class Ticket:
    """Contact of a run for its slots. It is sent in the cluster's own messages; logs do not show the key."""

    addresses: tuple[str, ...]
    dial_s: float
    silence_s: float
    secret: str = field(repr=False)
    version: str = __version__


def hold(ticket: Ticket, slot: int, node: str = "") -> None:
    """Hold ``slot`` of a run until the run is over, and run the agent of the host if ordered to.

    ``node`` is the cluster's name for the host (default: the host's own name). Raises ``ControlError`` if no address
    answers, or the agent fails; ``UsageError`` for another version of Farandole.
    """
    if ticket.version != __version__:
        raise UsageError(
            f"{socket.gethostname()} has Farandole {__version__}, and the run {ticket.version}: install one version"
        )
    keys, host = JobKeys.from_secret(ticket.secret), socket.gethostname()
    address = first_answering(ticket.addresses, keys, ticket.dial_s)
    identity = SLOT + f"{slot}-{secrets.token_hex(8)}".encode()  # a cluster may run a lost task again
    with Dealer(address, identity, keys, ticket.dial_s, silence_s=ticket.silence_s) as dealer:
        command = entry_command(task.MODULE, sys.path)
        dealer.send(SlotHello(slot, host, node or host, command, os.environ.get(DEVICES, "")))
        with contextlib.suppress(ControlError):  # a lost connection also ends the run here
            while not isinstance(order := dealer.recv(), SlotOver):
                if isinstance(order, HostAgent):
                    if not _host(order.config, dealer):
                        return
                    dealer.send(AgentOver(""))


def _host(config: bytes, dealer: Dealer) -> bool:
    """Run the agent until it exits; False if the run ended before. Raises ``AgentFailedError``."""
    agent = subprocess.Popen(
        entry_command(agent_config.MODULE, sys.path),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a terminal signals the cluster's processes, too
    )
    assert agent.stdin is not None
    assert agent.stderr is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it failed at once; its stderr says why
            agent.stdin.write(config + b"\n")
            agent.stdin.flush()
        said, is_wanted = _attend(agent.stderr.fileno(), dealer)
    finally:
        with contextlib.suppress(BrokenPipeError):
            agent.stdin.close()  # makes it exit
        try:
            code = agent.wait(END_S)
        except subprocess.TimeoutExpired:
            agent.kill()  # the kernel then kills its workers
            code = agent.wait()
        agent.stderr.close()
    if is_wanted and code:
        lines = [line.removeprefix("farandole: ") for line in said.decode(errors="replace").splitlines() if line]
        reason = f": {lines[-1]}" if lines else ""
        raise AgentFailedError(f"the agent on {socket.gethostname()} {describe(code)}{reason}")
    return is_wanted


@final
class AgentFailedError(Exception):
    """An agent has exited before its run ended. No ``ControlError``: that means here that the connection is lost."""


def _attend(words: int, dealer: Dealer) -> tuple[bytes, bool]:
    """Read the agent's stderr until it exits; False if the run is over before."""
    said, is_over = b"", False
    poll = select.poll()
    for fd in (words, *dealer.fds):
        poll.register(fd, select.POLLIN)
    while not is_over:
        ready = {fd for fd, _ in poll.poll()}
        if words in ready:
            text = os.read(words, 2**16)
            if not text:  # it has exited; its workers write elsewhere
                return said, True
            said = (said + text)[-SAID_BYTES:]
        while not is_over and (order := dealer.recv(0.0)) is not None:
            is_over = isinstance(order, SlotOver)
    return said, False
