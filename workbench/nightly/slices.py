"""The slices: what each plays, and the sources that it tests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import final

import msgspec

ROOT = Path(__file__).resolve().parents[2]
_SRC = "src/farandole/"


@final
class Slice(msgspec.Struct, frozen=True):
    """Part of the nightly tests.

    Its own tests are in ``tests/nightly/NAME``; ``also`` are commands that run after them, ``needs`` a target of make
    that runs before, ``tools`` required commands. ``about`` are the sources that it tests, as prefixes of paths in the
    repository; none: it is played by its name alone.
    """

    about: Sequence[str] = ()
    also: Sequence[Sequence[str]] = ()
    needs: str = ""
    tools: Sequence[str] = ()


def _of(*rooms: str, also: Sequence[Sequence[str]] = (), needs: str = "", tools: Sequence[str] = ()) -> Slice:
    """A slice about rooms of the package, and about paths of the repository that begin with "/"."""
    return Slice([room[1:] if room.startswith("/") else _SRC + room for room in rooms], also, needs, tools)


def _module(name: str, *arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", f"workbench.{name}", *arguments]


def _whole(*tests: str) -> Sequence[str]:
    """Tests of the gate once more, with all installed packages visible."""
    return ["env", "TESTS_WITH_ALL=1", sys.executable, "-m", "pytest", "-q", *(f"tests/frameworks/{t}" for t in tests)]


def _reproduced(application: str) -> Sequence[str]:
    """Train an application with one seed, and compare with its committed results."""
    return [sys.executable, "-m", f"examples.{application}", "--reproduce", "--check"]


APPLICATIONS = ("bigearthnet", "climate", "cosmoflow", "cosmogan", "hyperspectral", "jets", "timeseries")

SLICES = {
    "hosts": _of("cluster/", "launch/agents/", "launch/hosts/", "engines/tcp", "/workbench/cluster/"),
    "hosts_elastic": _of("elastic/", "launch/agents/", "launch/job/", "runtime/relay/"),
    "starters": _of("cluster/", "runtime/selfstart/"),
    "slurm": _of("cluster/slurm", "launch/batch/", "launch/sbatch/", "launch/hosts/"),
    "slurm_leases": _of("launch/leases/"),
    "slurm_search": _of("launch/leases/", "launch/providers/leases", "search/lease_pool"),
    "slurm_story": _of("launch/leases/", "/workbench/leases/"),
    "leases": _of("launch/leases/", "launch/job/"),
    "launcher": _of("launch/command/", "launch/function/", "launch/job/", "control/"),
    "faults": _of("elastic/", "launch/job/", "runtime/controller/", "/workbench/survival/"),
    "soak": _of("elastic/", also=[_module("survival", "soak", "--seconds", "400"), _module("survival", "reforms")]),
    "fuzz": _of("gradients/", "torch/", "/workbench/differential/", also=[_module("differential", "--seconds", "200")]),
    "fuzz_jax": _of("jax/", also=[_module("differential", "--framework", "jax", "--seconds", "600")]),
    "fuzz_keras": _of(
        "keras/", "gradients/", also=[_module("differential", "--framework", "keras", "--seconds", "480")]
    ),
    "stress": _of("runtime/lanes/", "engines/", "/native/", also=[_module("stress", "--seconds", "660")]),
    "models": _of("runtime/coordination/", "launch/leases/", also=[_module("peers.searches"), _module("leads.search")]),
    "attacks": _of("control/channel", "control/keys", "runtime/session/", "/workbench/attacks/"),
    "attacks_long": _of(
        "engines/",
        "control/",
        also=[_module("attacks", each) for each in ("numbers", "strangers", "controllers", "clock", "network")],
    ),
    "stalls": _of("runtime/coordination/", "runtime/lanes/", "runtime/session/"),
    "engines": _of("engines/", "/native/"),
    "native": _of(
        "/native/",
        also=[["make", "sanitize"], ["make", "portable"]],
        tools=["clang++", "aarch64-linux-gnu-g++", "qemu-aarch64-static"],
    ),
    "checkpoints": _of("checkpoint/"),
    "data": _of(
        "data/",
        "/workbench/data/",
        "/workbench/cluster/shared_folder/",
        also=[_module("data.schedules", "--number", "10000", "--seed", "1")],
        needs="formats",
    ),
    "torch": _of("torch/", "gradients/", "largebatch/"),
    "torch_16": _of("torch/", "engines/hybrid/", "runtime/relay/"),
    "torch_distributed": _of("torch/distributed/", "torch_backend.py", "cluster/torch_store"),
    "ranks": _of("adapters/", "runtime/collectives/", "numpy/"),
    "keras": _of("keras/", "gradients/"),
    "tensorflow": _of("tensorflow/", "graphs/"),
    "jax": _of("jax/", "graphs/"),
    "whole": _of("adapters/", also=[_whole("torch", "jax", "tensorflow", "keras")]),
    "horovod": _of("compat/", "torch/"),
    "notebooks": _of("notebook/", "monitor/", "launch/function/", also=[_module("attacks", "notebook")]),
    "page": _of("monitor/", "/web/src/"),
    "search": _of("search/", "launch/providers/"),
    "clusters": _of("launch/clusters/", "ray.py", "dask.py", "spark.py"),
    "docs": _of("launch/command/", "settings.py", "/docs/"),
    "examples": _of("largebatch/", "/examples/"),
    "applications": _of("inference/", "models/", "predict/", "/workbench/predict/", "/examples/", needs="science"),
    "science": Slice(  # not for the change of an hour: played by its name alone
        also=[[sys.executable, "-m", "workbench.nightly", "applications"], *map(_reproduced, APPLICATIONS)],
        needs="science",
    ),
    "versions_mxnet": _of("mxnet/", needs="mxnet-environment"),
    **{
        f"versions_{name}": _of(room, also=[_module("versions", *each)])
        for name, room, each in (
            ("tensorflow", "tensorflow/", ["tensorflow-2.16"]),
            ("tensorflow_2_18", "tensorflow/", ["tensorflow-2.18"]),
            ("tensorflow_2_20", "tensorflow/", ["tensorflow-2.20"]),
            ("jax", "jax/", ["jax-0.5", "jax-0.6"]),
            ("ipykernel", "notebook/", ["ipykernel-6.31", "ipykernel-7.3", "ipykernel-7.4"]),
            ("deephyper", "search/", ["deephyper-0.13"]),
            ("torch_libraries", "torch/distributed/", ["torch-libraries"]),
        )
    },
}
