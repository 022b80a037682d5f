"""Input: batches from files beside other loaders, an order without a list, and staging from slow storage."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import data_mixing, data_staging
from benchmarks.data_loaders import LOADERS, DataSet
from benchmarks.fleet import Fleet
from benchmarks.measure import Row, Sample, Table, Verdict
from workbench.cluster import UnavailableError
from workbench.cluster.shared_folder import SharedFolder

LEAST = {("100 KB", "torch"): 5.0, ("100 KB", "streaming"): 10.0, ("JPEG of 256 x 256", "torch"): 1.0}
"""How many times the samples of the other one come out of our cache."""

STEP_S = 0.02
"""Seconds that a training computes between two batches, where the wait for input is compared with the clock."""

LIST = "random.shuffle of a list"
ORDERS = """
import json, random, re, sys, time
from farandole.data.planning.order import ExactOrder
length, rounds, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def peak_mb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

ExactOrder(1000)[:256]
before, taken = peak_mb(), []
for epoch in range(rounds):
    begin = time.perf_counter()
    if kind == "exact":
        first = ExactOrder(length, 1, epoch)[:256]
    else:
        order = list(range(length))
        random.Random(epoch).shuffle(order)
        first = order[:256]
    taken.append((time.perf_counter() - begin) * 1e3)
    order = None
print(json.dumps([taken, peak_mb() - before]))
"""


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    return [
        _loading(quick),
        *_orders(quick),
        _ready_batches(quick),
        _blamed(quick),
        data_mixing.run(quick),
        *data_staging.run(quick),
    ]


def _loading(quick: bool) -> Table:
    absent = [name for name, loader in LOADERS.items() if not loader.is_installed()]
    without = f"; not installed: {', '.join(absent)}" if absent else ""
    table = Table(
        f"Loading in random order, batches of 16, from the page cache; ratios of staged{without}", "samples/s"
    )
    for name in DataSet.SIZES:
        with _written(name, quick) as data, ExitStack() as stack:
            fleets = [_fleet(stack, loader, data) for loader in LOADERS if LOADERS[loader].is_installed()]
            taken: dict[str, list[float]] = {fleet.contender: [] for fleet in fleets}
            for _ in range(3 if quick else 7):
                for fleet in fleets:
                    taken[fleet.contender] += fleet.call("run")
        table.rows.append(_row(name, {loader: Sample.of(values) for loader, values in taken.items()}))
    return table


@contextmanager
def _written(name: str, quick: bool) -> Iterator[DataSet]:
    with tempfile.TemporaryDirectory(prefix="bench-data-", ignore_cleanup_errors=True) as folder:
        data = DataSet(name, Path(folder))
        data.write(data.samples // (4 if quick else 1))
        if LOADERS["streaming"].is_installed():
            data.copy_to_mds()
        yield data


def _fleet(stack: ExitStack, loader: str, data: DataSet) -> Fleet:
    """Its process, which has proved that it hands out each sample once."""
    command = [sys.executable, "-m", "benchmarks.data_rank", loader, data.name, str(data.folder)]
    fleet = stack.enter_context(Fleet(loader, 1, commands=[(command, {})]))
    [numbers] = fleet.checked
    if numbers and numbers != list(range(len(data.files) * data.in_file)):
        raise RuntimeError(f"{loader} does not hand out each of the samples once")
    return fleet


def _row(name: str, samples: dict[str, Sample]) -> Row:
    verdicts = [
        Verdict(samples["staged"].median / samples[other].median, f"x {other}", least=LEAST.get((name, other)))
        for other in ("torch", "streaming")
        if other in samples
    ]
    return Row(name, samples, tuple(verdicts))


def _orders(quick: bool) -> list[Table]:
    """Milliseconds and memory until the first 256 places of a shuffled epoch are known."""
    time_ms = Table("The first 256 places of a shuffled epoch", "ms")
    memory = Table("Memory that the order of an epoch takes, on each rank", "MB")
    lists = 10**6 if quick else 10**7
    for exponent in (6, 7, 8):
        length, what = 10**exponent, f"1e{exponent} samples"
        samples, used = {}, {}
        for kind, rounds in (("exact", 25), (LIST, 1 if exponent > 6 else 3)):
            if kind == LIST and length > lists:
                continue
            command = [sys.executable, "-c", ORDERS, str(length), str(rounds), kind]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            taken, mb = json.loads(done.stdout)
            samples[kind], used[kind] = Sample.of(taken), Sample.of([mb])
        verdicts = (Verdict(samples["exact"].median, "ms", most=5.0),)
        time_ms.rows.append(Row(what, samples, verdicts))
        memory.rows.append(Row(what, used, (Verdict(used["exact"].median, "MB", most=2.0),)))
    return [time_ms, memory]


def _ready_batches(quick: bool) -> Table:
    """Cost of a batch that is ready: handing it out, and counting who waited for what."""
    import numpy as np

    from farandole.data.loading.batches import Batches

    batches, taken_us = 500 if quick else 2000, []
    for _ in range(5):
        loader = Batches(np.zeros((16 * batches, 4), np.float32), batch_size=16, threads=2, fake=True)
        begin = time.perf_counter()
        for _batch in loader:
            loader.commit()
        taken_us.append((time.perf_counter() - begin) * 1e6 / batches)
    cost = Sample.of(taken_us)
    share = Verdict(cost.median / 20e3, "of a step of 20 ms", most=0.01)
    return Table("Handing out a batch that is ready", "us", rows=[Row("fake=True", {"farandole": cost}, (share,))])


def _blamed(quick: bool) -> Table:
    """What the report says was lost to input, of what a training from slow storage lost by the clock."""
    from farandole.data import report
    from farandole.data.loading.report import input_log

    table = Table("Wait for input: the report beside the clock", "s")
    try:
        with _written("100 KB", quick=True) as data, SharedFolder(data.folder) as storage:
            files = storage.mount("here") / "files"
            for latency_ms in (5, 20) if quick else (5, 10, 20, 40):
                storage.lag(latency_ms / 1e3)
                input_log.steps.clear()
                took_s, found = _trained_s(files, fake=False), report()
                lost_s = took_s - _trained_s(files, fake=True)
                samples = {"clock": Sample.of([lost_s]), "report": Sample.of([found.exposed_s])}
                off = Verdict(abs(found.exposed_s / lost_s - 1), "off the clock", most=0.05)
                causes = Verdict(
                    float(len({each.cause for each in found.blamed} - {"shared storage"})), "wrong causes", most=0
                )
                table.rows.append(Row(f"{latency_ms} ms for each read", samples, (off, causes)))
    except UnavailableError as error:
        table.title += f": skipped. {error}"
    return table


def _trained_s(files: Path, fake: bool) -> float:
    """Seconds from the first batch of an epoch to its end, with steps of ``STEP_S``."""
    from farandole.data import arrays
    from farandole.data.loading.batches import Batches

    loader = Batches(arrays(files), batch_size=16, threads=2, fake=fake)
    batches = iter(loader)
    next(batches)
    begin = time.perf_counter()
    for _batch in batches:
        time.sleep(STEP_S)
        loader.commit()
    return time.perf_counter() - begin
