"""Commands and environments of the processes of each framework, and why one that is missing is missing.

peer = PEERS[0]
peer.lacks()            # "" or what to install
Fleet(peer.module, 2, commands=commands(peer))
"""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import final

from benchmarks.fleet import RANK, Command
from benchmarks.job import farandole

PORTS = "BENCH_PORTS"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "NPROC": "1",  # threads of XLA's client for processors
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


@final
@dataclass(frozen=True)
class Peer:
    """Two processes of one framework; ``needs`` are the modules that it imports, with what installs them."""

    name: str
    module: str
    needs: dict[str, str]
    env: dict[str, str] = field(default_factory=dict)
    launched: bool = True

    def lacks(self) -> str:
        """The first module that is not here and what to type, or nothing."""
        for module, install in self.needs.items():
            if importlib.util.find_spec(module) is None:
                return f"no module {module}: {install}"
        return ""


_TENSORFLOW = {"tensorflow": "pip install tensorflow-cpu"}
_JAX = {"jax": "pip install jax", "optax": "pip install optax"}
_KERAS = {"keras": "pip install keras", "farandole.keras": "this version of Farandole has none"}


PEERS = (
    Peer("Keras on tensorflow", "keras_runs", {**_TENSORFLOW, **_KERAS}, {"KERAS_BACKEND": "tensorflow"}),
    Peer(
        "MultiWorkerMirroredStrategy",
        "mirrored_runs",
        {**_TENSORFLOW, "tf_keras": "pip install --no-deps tf_keras==2.21.0"},
        launched=False,
    ),
    Peer("Keras on jax", "keras_runs", {**_JAX, **_KERAS}, {"KERAS_BACKEND": "jax"}),
    Peer("Keras on torch", "keras_runs", _KERAS, {"KERAS_BACKEND": "torch"}),
    Peer("JAX", "jax_runs", {**_JAX, "farandole.jax": "this version of Farandole has none"}),
    Peer("jax.distributed", "jax_distributed_runs", _JAX, launched=False),
    Peer(
        "TensorFlow",
        "tensorflow_runs",
        {**_TENSORFLOW, "farandole.tensorflow": "this version of Farandole has none"},
        {"KERAS_BACKEND": "tensorflow"},
    ),
)


def commands(peer: Peer) -> list[Command]:
    """The launcher with both ranks, or two processes that find each other by ports of this machine."""
    rank = [sys.executable, "-m", "benchmarks.frameworks.rank", peer.module]
    env = {**ONE_THREAD, **peer.env}
    if peer.launched:
        return [(farandole("run", "-np", "2", *rank), env)]
    ports = _free_ports(2)
    workers = [f"localhost:{port}" for port in ports]
    found = []
    for place in range(2):
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": place}}
        own = {RANK: str(place), PORTS: ",".join(ports), "TF_CONFIG": json.dumps(cluster)}
        found.append((rank, {**env, **own}))
    return found


def _free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(count)]
        return [str(each.getsockname()[1]) for each in sockets]
