"""Rendezvous of processes with the controller of their job: rank 0 starts it, the others learn its address.

    assignment = meet(detect(), ProcessRole(worker_id=1, expected=4), settings)
    assignment.controller, assignment.key       # "tcp://10.0.0.1:7000", "5f0c..."

A process looks for the controller once; when it joins again, after ``shutdown()`` or a loss, it uses the same one.
"""

from __future__ import annotations

import os
import time
from typing import final

import msgspec

from farandole.cluster.contact import Contact, Meeting, is_loopback
from farandole.cluster.environment import CONTROLLER, Environment
from farandole.control.addresses import everywhere, is_own, own_host_only
from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys, new_secret
from farandole.errors import ControlError, SettingsError, StartError
from farandole.runtime.selfstart.host_socket import name_of, receive_address
from farandole.runtime.selfstart.spawn import ControllerConfig, HostAgentConfig, ensure_agent, ensure_controller
from farandole.runtime.session.link import Assignment
from farandole.settings import Settings

ANYWHERE = "tcp://*:"

DIAL_S = 5.0
"""Time to dial before reading the address again: it may be a leftover of an earlier job."""


@final
class ProcessRole(msgspec.Struct, frozen=True):
    """Role of this process: ``worker_id`` among ``expected`` (0: any number); ``label``: job of a subset of ranks."""

    worker_id: int
    expected: int
    label: str = ""


_found: dict[str, Contact] = {}
"""Controllers found, by job: the address that answered, and the key."""


def find_controller(environment: Environment, part: ProcessRole, settings: Settings) -> Assignment:
    """Assignment of this process, with its controller; raises ``StartError`` if the controller is not found in time."""
    job = environment.controller or f"{environment.name} {part.label}"
    meeting = Meeting(settings.rendezvous_dir or os.getcwd(), settings.start_timeout_s, part.label)
    if part.worker_id == 0 and not environment.has_controller:
        contact = _start(job, environment, part, meeting, settings)
    else:
        contact = _found.get(job) or _look_for(environment, part, meeting)
        if job not in _found and environment.spans_hosts and not environment.launched:
            contact = _by_way_of_agent(contact, environment.host, part.expected, settings)
    _found[job] = contact
    address, is_interactive = contact.addresses[0], environment.is_interactive
    return Assignment(part.worker_id, part.expected, environment.host, address, contact.key, is_interactive)


def _by_way_of_agent(contact: Contact, host: str, size: int, settings: Settings) -> Contact:
    """Start this host's agent if it has none; in large jobs return its contact, because workers connect only to it."""
    [address], key = contact.addresses, contact.key
    is_large = size > settings.tree_radix
    config = HostAgentConfig(
        [address],
        key,
        host,
        settings.host_timeout_s,
        is_large,
        settings.network_interface,
        settings.ports,
        starter=os.getpid(),
    )
    ensure_agent(config, settings)
    return (
        Contact([receive_address(name_of(key, host, address), host, settings.start_timeout_s)], key)
        if is_large
        else contact
    )


def _start(job: str, environment: Environment, part: ProcessRole, meeting: Meeting, settings: Settings) -> Contact:
    """Start the controller on this host if none runs, and share its contact with the other processes."""
    file = environment.file(meeting)
    config = ControllerConfig(
        _where_to_listen(environment, settings.ports),
        environment.host,
        environment.size if environment.controller else part.expected,
        environment.key or new_secret(),
        [str(path) for path in file.paths] if file else [],
    )
    contact = ensure_controller(job, config, settings)
    if job not in _found:
        environment.share(Contact(contact.addresses, "" if environment.key else contact.key), meeting)
    if config.listen.startswith(ANYWHERE):
        return Contact([f"tcp://127.0.0.1:{contact.addresses[0].rpartition(':')[2]}"], contact.key)
    return contact


def _where_to_listen(environment: Environment, ports: str) -> str:
    told = environment.controller
    if not told:
        return everywhere(ports) if environment.spans_hosts else own_host_only()
    host, _, port = told.removeprefix("tcp://").rpartition(":")
    if is_loopback(told):
        return told
    if not is_own(host.strip("[]")):
        raise SettingsError(
            f"{CONTROLLER}={told} names another host than {environment.host}, where rank 0 is, which starts the "
            f"controller: set it to tcp://{environment.host}:{port or 'PORT'} for all processes"
        )
    return f"{ANYWHERE}{port}"


def _look_for(environment: Environment, part: ProcessRole, meeting: Meeting) -> Contact:
    """Learn the addresses of the controller, and dial until one answers."""
    deadline = time.monotonic() + meeting.timeout_s
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        said = environment.share(None, msgspec.structs.replace(meeting, timeout_s=left_s))
        key = said.key or environment.key
        if len(said.addresses) == 1 and is_loopback(said.addresses[0]):
            return Contact(said.addresses, key)
        try:
            keys = JobKeys.from_secret(key)
            return Contact([first_answering(said.addresses, keys, min(left_s, DIAL_S))], key)
        except ControlError as error:
            if left_s <= DIAL_S:
                raise StartError(
                    f"rank {part.worker_id} on {environment.host} cannot join the job: {error}. Is rank 0 there, and "
                    "no firewall between the hosts?"
                ) from error
