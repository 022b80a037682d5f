"""A mailbox, whose address PyTorch's open store tells everybody, takes messages from ranks of its job alone."""

from __future__ import annotations

import re
from pathlib import Path

import zmq

from farandole.control.keys import JobKeys, new_secret
from farandole.control.sockets import client_socket
from tests.support.frameworks import lean
from tests.support.launch.running import StartJob

SCRIPT = """
import os, time, torch
import torch.distributed as dist
dist.init_process_group("farandole")
rank, found = dist.get_rank(), torch.zeros(2)
if rank == 0:
    print("mailbox", dist.group.WORLD.get_group_store().get("mailbox.0").decode(), flush=True)
    while not os.path.exists("tried"):
        time.sleep(0.01)
    dist.recv(found, 1)
    assert found.tolist() == [7.0, 7.0], found
else:
    while not os.path.exists("tried"):
        time.sleep(0.01)
    dist.send(torch.full((2,), 7.0), 0)
dist.barrier()
"""


def test_nobody_without_the_key_sends_anything(job: StartJob, tmp_path: Path) -> None:
    running = job("-np", "2", python=SCRIPT, environment={**lean("torch"), "OMP_NUM_THREADS": "1"})
    running.prints("mailbox ipc://")
    address = re.search(r"mailbox (\S+)", running.stdout)
    assert address is not None
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    letter = [b"\0" * 8 + (1).to_bytes(8, "little") + b"\0" * 8, b"\0" * 8]  # as rank 1 would send two zeros
    strangers = [context.socket(zmq.DEALER), client_socket(context, JobKeys.from_secret(new_secret()))]
    for each in strangers:
        each.linger = 0
        each.connect(address[1])
        each.send_multipart(letter)
        each.poll(500)  # time to be let in, if it were
    (tmp_path / "tried").touch()
    assert running.end() == 0, running.stderr
    context.destroy(0)
