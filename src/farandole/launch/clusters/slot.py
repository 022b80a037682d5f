"""Slot of a cluster as the task that holds it sees it: the code that Ray, Dask and Spark run for us.

    hold(ticket, slot=3)            # in a task of the cluster; returns when the run is over

The task tells the process that wants workers where it is, and waits. The first slot of each host is then told to run
the agent there, which starts the workers of all its slots; the others only keep what the cluster has given them. So
workers are processes of their own: they can be ended whatever they do, and leave nothing in the cluster's.

One thread runs all of it, the task's own. The agent ends when its standard input does, and so with this process,
however that ends; ``Dealer.recv`` raises when the other side is gone. Nothing else is waited for.
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
from farandole.control.slot_messages import SLOT, HostAgent, SlotHello, SlotOver
from farandole.errors import ControlError, UsageError
from farandole.launch.agents import agent_config
from farandole.launch.agents.agents import END_S, SAID_BYTES
from farandole.launch.function import task
from farandole.version import __version__

DEVICES = "CUDA_VISIBLE_DEVICES"


@final
@dataclass(frozen=True)
class Ticket:
    """Contact of a run for its slots. It travels as the cluster's own messages do; logs do not show the key."""

    addresses: tuple[str, ...]
    dial_s: float
    silence_s: float
    secret: str = field(repr=False)
    version: str = __version__


def hold(ticket: Ticket, slot: int, node: str = "") -> None:
    """Hold ``slot`` of a run until it is over, and host the agent there if asked to.

    ``node`` is the cluster's name for the host (default: what the host calls itself). Raises ``ControlError`` if nobody
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
        with contextlib.suppress(ControlError):  # the run is over for us, too, when nobody is there any more
            while not isinstance(order := dealer.recv(), SlotOver):
                if isinstance(order, HostAgent) and not _host(order.config, dealer):
                    return


def _host(config: bytes, dealer: Dealer) -> bool:
    """Run the agent until it ends, or is not wanted any more: then False. Raises ``AgentFailedError``."""
    agent = subprocess.Popen(
        entry_command(agent_config.MODULE, sys.path),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a terminal sends its signals to the cluster's processes, too
    )
    assert agent.stdin is not None
    assert agent.stderr is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it could not even begin, and says why
            agent.stdin.write(config + b"\n")
            agent.stdin.flush()
        said, is_wanted = _attend(agent.stderr.fileno(), dealer)
    finally:
        with contextlib.suppress(BrokenPipeError):
            agent.stdin.close()  # its end, if it lives
        try:
            code = agent.wait(END_S)
        except subprocess.TimeoutExpired:
            agent.kill()  # the kernel kills its workers then
            code = agent.wait()
        agent.stderr.close()
    if is_wanted and code:
        lines = [line.removeprefix("farandole: ") for line in said.decode(errors="replace").splitlines() if line]
        reason = f": {lines[-1]}" if lines else ""
        raise AgentFailedError(f"the agent on {socket.gethostname()} {describe(code)}{reason}")
    return is_wanted


@final
class AgentFailedError(Exception):
    """An agent has ended before its run. No ``ControlError``, which here means that nobody is left to be told."""


def _attend(words: int, dealer: Dealer) -> tuple[bytes, bool]:
    """Read what the agent says until it has ended; False if the run is over before that."""
    said, is_over = b"", False
    poll = select.poll()
    for fd in (words, *dealer.fds):
        poll.register(fd, select.POLLIN)
    while not is_over:
        ready = {fd for fd, _ in poll.poll()}
        if words in ready:
            text = os.read(words, 2**16)
            if not text:  # its end; its workers write elsewhere
                return said, True
            said = (said + text)[-SAID_BYTES:]
        while not is_over and (order := dealer.recv(0.0)) is not None:
            is_over = isinstance(order, SlotOver)
    return said, False
