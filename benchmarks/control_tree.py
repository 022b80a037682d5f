"""What the controller has to do in large jobs, flat and through a tree of relays: in virtual time.

python -m benchmarks.control_tree                # up to 27,360 ranks (4,560 hosts of 6): a table and a picture in out/
python -m benchmarks.control_tree --quick        # up to 768 ranks: seconds
python -m benchmarks.control_tree --measure      # what a message costs on this machine; COSTS has these numbers
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple, final

from benchmarks.control_simulation import SIGNATURE, Costs, World, stall_report_s, steps
from farandole.control.channel import Dealer, Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.messages import Entry, Hello, Submit
from farandole.runtime.controller.controller import Controller
from farandole.settings import Settings

COSTS = Costs(receive_s=14e-6, send_s=8e-6, latency_s=25e-6)
"""Of a process on the machine of docs/design/control-tree.md; the latency is that of TCP in a cluster's network."""

PER_HOST = 6
SIZES = (48, 192, 768, 3072, 12288, 27360)
RADIXES = (2, 4, 8, 16, 32, 64, 128)
SHOWN = (8, 32)
"""The radixes whose curves are drawn over the number of ranks."""

SPREAD_S = 1e-3
"""Within this time all ranks become ready; what is reported counts from the last one."""

LATE_S = 2.0
"""How much later one rank comes in the case of a straggler."""

PEERS, ROUNDS = 32, 400


@final
class Result(NamedTuple):
    """One line of the table."""

    ranks: int
    radix: int | None
    relays: int
    received: int
    sent: int
    busiest: int
    order_s: float
    root_s: float
    late_order_s: float
    late_received: int
    stall_s: float

    @property
    def label(self) -> str:
        """What it is a result of."""
        return "flat" if self.radix is None else f"radix {self.radix}"


@cache
def simulate(ranks: int, radix: int | None, count: int = 1) -> Result:
    """The steady state of one named collective, one with a late rank, and then a stall."""
    gc.disable()  # a simulated job is a million objects that stay, and looking at them takes longer than all else
    world = World(ranks, PER_HOST, radix, COSTS)
    world.begin()
    taken = list(steps(world, "loss", count, SPREAD_S))
    late = world.collective("loss", SPREAD_S, LATE_S)
    stall_s = stall_report_s(world, "loss")
    gc.enable()
    return Result(
        ranks,
        radix,
        world.depth,
        max(step.root_received for step in taken),
        max(step.root_sent for step in taken),
        max(step.busiest_relay for step in taken),
        median(step.order_s for step in taken),
        median(step.root_busy_s for step in taken),
        late.order_s,
        late.root_received,
        stall_s,
    )


def table(results: Sequence[Result]) -> str:
    """For the documentation."""
    head = (
        "ranks", "control plane", "relays on the way", "root: in + out", "most at a relay", "root busy, ms",
        "order after the last rank, ms", "after one that is 2 s late, ms", "root: in, then",
        "stall of 60 s reported after, s",
    )  # fmt: skip
    rows = [
        (
            f"{r.ranks:,}", r.label, f"{r.relays}", f"{r.received} + {r.sent}", f"{r.busiest}", f"{1e3 * r.root_s:.2f}",
            f"{1e3 * r.order_s:.2f}", f"{1e3 * r.late_order_s:.2f}", f"{r.late_received}", f"{r.stall_s:.3f}",
        )
        for r in results
    ]  # fmt: skip
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))


def draw(over_ranks: Sequence[Result], over_radix: Sequence[Result], path: Path) -> None:
    """Messages at the root and time to order over the number of ranks; time to order over the radix."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (messages, order, radix) = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    for label in dict.fromkeys(r.label for r in over_ranks):
        own = [r for r in over_ranks if r.label == label]
        style = "s--" if label == "flat" else "o-"
        ranks = [r.ranks for r in own]
        messages.loglog(ranks, [r.received + r.sent for r in own], style, label=label)
        order.loglog(ranks, [1e3 * r.order_s for r in own], style, label=label)
    messages.set(title="messages of the root for one collective", xlabel="ranks", ylabel="messages in and out")
    order.set(title="from the last rank's word to everybody's order", xlabel="ranks", ylabel="milliseconds")
    trees = [r for r in over_radix if r.radix is not None]
    radix.loglog([r.radix or 0 for r in trees], [1e3 * r.order_s for r in trees], "o-", label="to everybody's order")
    radix.loglog([r.radix or 0 for r in trees], [1e3 * r.root_s for r in trees], "v:", label="root busy")
    radix.set(title=f"{trees[0].ranks:,} ranks, by the radix", xlabel="radix", ylabel="milliseconds")
    for axis in (messages, order, radix):
        axis.grid(alpha=0.3, which="both")
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


# -- what a message costs here ----------------------------------------------------------------------------------------


def measure(ranks: int = SIZES[-1], rounds: int = ROUNDS) -> Costs:
    """In rounds, as a collective goes: one message from each peer, one to each; ``ranks`` are those of the job.

    It is processor time that is counted, of the thread that is busier: ours, or the one in which ZeroMQ decrypts and
    encrypts. Other load of the machine does not count.
    """
    secret, message = new_secret(), Submit(1, Entry(0, "allreduce.loss", 7))
    with Router(JobKeys.from_secret(secret)) as router:
        program = f"from benchmarks.control_tree import talk; talk({router.address!r}, {secret!r}, {rounds})"
        child = subprocess.Popen([sys.executable, "-c", program])
        receiving_s = sending_s = 0.0
        _receive(router, PEERS)
        begin_s, all_s = time.thread_time(), time.process_time()
        for _ in range(rounds):
            sent_s = time.thread_time()
            for peer in range(PEERS):
                router.send(b"%du" % peer, message)
            got_s = time.thread_time()
            _receive(router, PEERS)
            sending_s += got_s - sent_s
            receiving_s += time.thread_time() - got_s
        zmq_s = time.process_time() - all_s - (time.thread_time() - begin_s)
        child.wait()
    each = 1 / (rounds * PEERS)
    handled_s = receiving_s * each + _handling_s(ranks)
    return Costs(max(handled_s, zmq_s * each / 2), max(sending_s * each, zmq_s * each / 2), COSTS.latency_s)


def talk(address: str, secret: str, rounds: int) -> None:
    """The other side of ``measure``."""
    keys = JobKeys.from_secret(secret)
    dealers = [Dealer(address, b"%du" % peer, keys) for peer in range(PEERS)]
    message = Submit(1, Entry(0, "allreduce.loss", 7))
    for turn in range(rounds + 1):
        for dealer in dealers:
            if turn:
                dealer.recv()
            dealer.send(message)
    for dealer in dealers:
        dealer.close()


def _receive(router: Router, count: int) -> None:
    while count:
        router.wait()
        while router.recv() is not None:
            count -= 1


def _handling_s(ranks: int, rounds: int = 3) -> float:
    """What the controller's state machines take for a message of the largest job: one bit a rank is work, too."""
    controller = Controller(lambda *_: None, Settings(engine="tcp"), ranks, time.monotonic)
    for rank in range(ranks):
        controller.handle(b"%du" % rank, Hello("", rank, ranks, f"h{rank}", rank, "1", ["tcp"], 2, 40, []))
    begin = 0.0
    for turn in range(rounds + 2):
        if turn == 2:
            begin = time.thread_time()
        entry = Entry(0, "n", 0) if turn >= 2 else Entry(0, "n", signature=SIGNATURE)
        for rank in range(ranks):
            controller.handle(b"%du" % rank, Submit(1, entry))
        controller.tick(time.monotonic())
    return (time.thread_time() - begin) / (ranks * rounds)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.control_tree", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="small jobs only")
    parser.add_argument("--measure", action="store_true", help="measure what a message costs here, and nothing else")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for control-tree.md and control-tree.png")
    options = parser.parse_args()
    if options.measure:
        costs = measure()
        print(f"receive_s={costs.receive_s * 1e6:.1f}e-6, send_s={costs.send_s * 1e6:.1f}e-6")
        return
    sizes = [size for size in SIZES if size <= 768] if options.quick else SIZES
    over_ranks = [simulate(size, radix) for size in sizes for radix in (None, *SHOWN)]
    over_radix = [simulate(sizes[-1], radix) for radix in RADIXES]
    options.out.mkdir(parents=True, exist_ok=True)
    text = f"{table(over_ranks)}\n{table(over_radix)}"
    (options.out / "control-tree.md").write_text(text)
    draw(over_ranks, over_radix, options.out / "control-tree.png")
    print(text)


if __name__ == "__main__":
    main()
