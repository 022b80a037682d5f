"""Measurement of a model on this machine: loading it, and forward passes of a function that the user names.

measure("models/landcover", "mynet:forward", batch=32)

``forward(weights, batch)`` gets the named arrays and a number of samples, and returns a function of no arguments that
does one forward pass of so many samples, and returns when it is done. Only code that was named on the command line is
run: no code of the model's folder.
"""

from __future__ import annotations

import importlib
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from farandole.errors import UsageError
from farandole.models.registry import load
from farandole.models.sheet import FactSheet, MachineFacts
from farandole.models.weights import Arrays
from farandole.monitor.describe import describe

ROUNDS, WARM_UP = 15, 3


def measure(folder: str, forward: str = "", batch: int = 32) -> MachineFacts:
    """Facts of this machine: seconds to verify and load, and of a forward pass of one sample and of ``batch``.

    Raises ``ModelError`` for a model that does not verify, and ``UsageError`` for a missing function.
    """
    function = _named(forward) if forward else None
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        weights = load(folder)
        times.append(time.perf_counter() - begun)
    load_s = statistics.median(times)
    nbytes = sum(array.nbytes for array in weights.values())
    here = msgspec.structs.replace(_here(), load_s=load_s, load_bytes_per_s=nbytes / load_s)
    if function is None:
        return here
    rounds = _seconds(function, weights, 1)
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return msgspec.structs.replace(
        here,
        forward=forward,
        latency_s=[low, statistics.median(rounds), high],
        batch=batch,
        samples_per_s=batch / statistics.median(_seconds(function, weights, batch)),
    )


def with_machine(sheet: FactSheet, machine: MachineFacts) -> FactSheet:
    """The facts with this machine, in place of an earlier measurement of the same machine type and function."""
    same = (machine.processor, machine.cores, machine.accelerator, machine.forward)
    others = [m for m in sheet.machines if (m.processor, m.cores, m.accelerator, m.forward) != same]
    return msgspec.structs.replace(sheet, machines=[*others, machine])


def _named(forward: str) -> Callable[[Arrays, int], Callable[[], Any]]:
    module, _, name = forward.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as ``python -m`` does
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--forward {forward}: {error}; write MODULE:FUNCTION, of a module in this folder") from error
    if not callable(found):
        raise UsageError(f"--forward {forward} is no function")
    result: Callable[[Arrays, int], Callable[[], Any]] = found
    return result


def _seconds(function: Callable[[Arrays, int], Callable[[], Any]], weights: Arrays, batch: int) -> list[float]:
    """Seconds of each of ``ROUNDS`` passes, after some that warm up."""
    forward = function(weights, batch)
    times = []
    for number in range(WARM_UP + ROUNDS):
        begun = time.perf_counter()
        forward()
        if number >= WARM_UP:
            times.append(time.perf_counter() - begun)
    return times


def _here() -> MachineFacts:
    """This machine, without the names of its host and of its user."""
    return MachineFacts(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        system=f"{platform.system()} {platform.release()}",
        accelerator=_accelerator(),
        versions=describe(["farandole"]).versions,
        date=time.strftime("%Y-%m-%d"),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _accelerator() -> str:
    """The accelerator that PyTorch sees, if ``forward`` has loaded PyTorch."""
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_available() else ""
