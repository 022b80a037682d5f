"""Mailbox of a process: receives tensors from members of its groups, each with a tag.

    mailbox = Mailbox(session, store)
    mailbox.send(MessageLabel(group, sender=0, tag=7), to=1, payload=memory)
    mailbox.receive(MessageLabel(group, sender=ANY, tag=7), target, work, group, 60.0)    # then: work.wait()

``send`` copies the message, so that the sender does not wait for the receiver. Messages use ZeroMQ, encrypted and
authenticated by the job's keys. PyTorch's store holds the address, which is not secret.
"""

# Threads. The mailbox's thread owns ``_inbox`` and the ``Door``. Any thread of the program sends messages and posts
# receives. ``_lock`` guards ``_outboxes`` (one thread at a time may use a socket), ``_arrived`` and ``_posted``. Works
# are finished without the lock, because their futures call back into the program. The
# session wakes the thread up when it ends, perhaps in a signal handler.

from __future__ import annotations

import contextlib
import datetime as dt
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, final

import torch
import zmq

from farandole.control.addresses import everywhere, own_endpoints, own_host_only
from farandole.control.admission import Door
from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys
from farandole.control.local_peer import admit_own
from farandole.control.sockets import Context, client_socket, connect, new_socket
from farandole.control.wakeup import Wakeup
from farandole.errors import AbortError, FarandoleError, MismatchError, StallError
from farandole.torch.distributed.work import QueuedWork

if TYPE_CHECKING:
    from farandole.cluster.torch_store import Store
    from farandole.engines.engine import Group
    from farandole.runtime.session.session import Session

ANY = -1
"""Any member of the group."""

LOOK_MS = 100
"""Milliseconds between checks for receives past their deadline."""

DIAL_S = 30.0

PRESENT = -(2**62)
"""Tag of a roll call, which programs do not use."""

ANSWER_S = 5.0
"""Extra seconds to wait for the first member's answer, beyond its own wait for the others."""

_LABEL = struct.Struct("=Qqq")


class MessageLabel(NamedTuple):
    """Label of a message: the number of its group, the sending member, and its tag."""

    group: int
    sender: int
    tag: int


class _Posted(NamedTuple):
    """A posted receive: its target tensor, its deadline, and the group of ``label.sender``."""

    label: MessageLabel
    target: torch.Tensor
    work: QueuedWork
    until_s: float
    group: Group

    @property
    def overdue(self) -> str:
        """Error text after the deadline."""
        sender, tag = self.label.sender, self.label.tag
        who = "any rank" if sender == ANY else self.group.name(sender)
        return f"nothing came from {who} with tag {tag} in {self.group.label} within {self.group.deadline_s:g} s"


@final
class Mailbox:
    """Mailbox of the process in ``session``; other processes find its address in ``store``."""

    def __init__(self, session: Session, keys: JobKeys, store: Store) -> None:
        self._session, self._keys, self._store = session, keys, store
        self._lock = threading.Lock()
        self._context = Context()
        self._door = Door(self._context, keys.client.public)
        self._inbox = new_socket(self._context, zmq.ROUTER)
        self._inbox.maxmsgsize = -1  # no limit: senders are authenticated
        self._inbox.curve_server, self._inbox.curve_secretkey = True, keys.server.secret
        is_alone = len(set(session.topology.hosts)) == 1
        admit_own(self._inbox)
        self._inbox.ipv6 = not is_alone
        self._inbox.bind(own_host_only() if is_alone else everywhere(session.settings.ports))
        self._outboxes: dict[int, zmq.Socket[bytes]] = {}
        self._arrived: dict[MessageLabel, deque[zmq.Frame]] = {}
        self._posted: list[_Posted] = []
        self._is_closed, self._wakeup = False, Wakeup()
        address = self._inbox.get_string(zmq.LAST_ENDPOINT)
        told = [address] if is_alone else own_endpoints(address, session.settings.network_interface)
        store.set(f"mailbox.{session.topology.rank}", ",".join(told))
        self._thread = threading.Thread(target=self._serve, name="farandole-mailbox", daemon=True)
        self._thread.start()
        session.end.subscribe(self._wakeup.signal)
        session.at_close(self.close)

    def send(self, label: MessageLabel, to: int, tensor: torch.Tensor) -> None:
        """Send a contiguous tensor to the rank ``to`` of the job; return once it is copied."""
        head = _LABEL.pack(*label)
        payload = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
        outbox = self._outbox(to)
        with self._lock:
            outbox.send(head, zmq.SNDMORE)
            outbox.send(payload)

    def receive(
        self, label: MessageLabel, target: torch.Tensor, work: QueuedWork, group: Group, limit_s: float
    ) -> None:
        """Post a receive: write the next message of this label to ``target``, and then finish ``work``."""
        posted = _Posted(label, target, work, time.monotonic() + limit_s, group)
        with self._lock:
            found = self._pop_arrived(label)
            if found is None:
                self._posted.append(posted)
        if found is not None:
            _deliver(posted, *found)

    def roll_call(self, number: int, group: Group, limit_s: float) -> list[int]:
        """Members of a group that sent nothing to the first member within ``limit_s``; the same list on all members."""
        here, there = torch.zeros(1, dtype=torch.uint8), torch.zeros(group.size, dtype=torch.uint8)
        works = [QueuedWork([]) for _ in range(group.size)]
        until_s = time.monotonic() + limit_s
        if group.rank:
            self.send(MessageLabel(number, group.rank, PRESENT), group.ranks[0], here)
            self.receive(MessageLabel(number, 0, PRESENT), there, works[0], group, 2 * limit_s + ANSWER_S)
            works[0].wait()
            return [int(each) for each in there.nonzero()]
        for member in range(1, group.size):
            self.receive(MessageLabel(number, member, PRESENT), here, works[member], group, limit_s)
        for member in range(1, group.size):
            with contextlib.suppress(StallError):
                works[member].wait(dt.timedelta(seconds=max(1e-3, until_s - time.monotonic())))
            there[member] = not works[member].is_success()
        for member in range(1, group.size):
            self.send(MessageLabel(number, 0, PRESENT), group.ranks[member], there)
        return [int(each) for each in there.nonzero()]

    def close(self) -> None:
        """Fail all pending receives, and end the thread."""
        self._is_closed = True
        self._wakeup.signal()

    def _pop_arrived(self, wanted: MessageLabel) -> tuple[MessageLabel, zmq.Frame] | None:
        """Remove and return the oldest arrived message of a label. The caller holds the lock."""
        for label, frames in self._arrived.items():
            if _matches(wanted, label):
                frame = frames.popleft()
                if not frames:
                    del self._arrived[label]
                return label, frame
        return None

    def _outbox(self, to: int) -> zmq.Socket[bytes]:
        with self._lock:
            found = self._outboxes.get(to)
        if found is None:
            addresses = bytes(self._store.get(f"mailbox.{to}")).decode().split(",")
            address = addresses[0] if len(addresses) == 1 else first_answering(addresses, self._keys, DIAL_S)
            made = client_socket(self._context, self._keys)
            connect(made, address)
            with self._lock:
                found = self._outboxes.setdefault(to, made)
            if found is not made:  # another thread was faster
                made.close()
        return found

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._inbox, zmq.POLLIN)
        poller.register(self._door.fd, zmq.POLLIN)
        poller.register(self._wakeup.fd, zmq.POLLIN)
        while not self._is_closed:
            ready = dict(poller.poll(LOOK_MS))
            self._wakeup.clear()
            if self._door.fd in ready:
                self._door.serve()
            with contextlib.suppress(zmq.Again):
                while True:
                    _, head, payload = self._inbox.recv_multipart(zmq.NOBLOCK, copy=False)
                    self._arrive(MessageLabel(*_LABEL.unpack(head.buffer)), payload)
            self._give_up()
        self._give_up()
        for socket in (self._inbox, *self._outboxes.values()):
            socket.close()
        self._door.close()
        self._wakeup.close()

    def _arrive(self, label: MessageLabel, frame: zmq.Frame) -> None:
        with self._lock:
            posted = next((each for each in self._posted if _matches(each.label, label)), None)
            if posted is None:
                self._arrived.setdefault(label, deque()).append(frame)
                return
            self._posted.remove(posted)
        _deliver(posted, label, frame)

    def _give_up(self) -> None:
        """Fail receives that are past their deadline, or all if the session or the mailbox has ended."""
        reason, now = self._session.end.reason or ("the session is closed" if self._is_closed else ""), time.monotonic()
        with self._lock:
            lost = [each for each in self._posted if reason or now > each.until_s]
            self._posted = [each for each in self._posted if each not in lost]
        for each in lost:
            error: FarandoleError = AbortError(reason) if reason else StallError(each.overdue)
            each.work.finish(error)


def _matches(wanted: MessageLabel, label: MessageLabel) -> bool:
    return wanted == label or (wanted.sender == ANY and wanted == label._replace(sender=ANY))


def _deliver(posted: _Posted, label: MessageLabel, frame: zmq.Frame) -> None:
    """Copy a message into the target of its receive, and finish its work."""
    target, found = posted.target, memoryview(frame.buffer)
    posted.work.source = label.sender
    if len(found) != target.nbytes:
        who = posted.group.name(label.sender)
        error = MismatchError(f"recv() has a tensor of {target.nbytes} bytes, and {who} has sent {len(found)}")
        posted.work.finish(error)
        return
    if found:
        with torch.no_grad():
            target.copy_(torch.frombuffer(found, dtype=target.dtype).view(target.shape))
    posted.work.finish(None)
