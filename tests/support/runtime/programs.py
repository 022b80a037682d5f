"""Programs of collectives, their sequential meaning, and ranks that run them in any interleaving.

``model`` says what comes out: the answer, an error for all, or a deadlock. A ``Simulation`` must come to the same.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, final

from hypothesis import strategies as st

from farandole.collective import DType, Kind, ReduceOp
from farandole.control.messages import Entry, Order, Signature

ROW_BYTES = 4


@final
@dataclass(frozen=True)
class Op:
    """One call of a program. ``uid`` names the call on all ranks that make it; ``where`` a process set by its label."""

    uid: int
    kind: Kind
    name: str = ""
    where: str = "all"
    rows: tuple[int, ...] = (1,)  # one tensor each
    op: ReduceOp = ReduceOp.SUM
    root: int = 0


Move: TypeAlias = Callable[[], None]
Programs: TypeAlias = list[list[Op]]
Outcomes: TypeAlias = dict[tuple[int, int], tuple[object, ...]]
"""What became of call ``position`` of ``rank``; nothing for a call that never returns."""


def signature_of(op: Op, rank: int, sets: dict[str, tuple[int, ...]], ids: dict[str, int]) -> Signature:
    if op.kind == Kind.ADD_SET:
        return Signature(op.kind, [], [], splits=list(sets[op.where]))
    if op.kind == Kind.REMOVE_SET:
        return Signature(op.kind, [], [], splits=[ids[op.where]])
    if op.kind in (Kind.JOIN, Kind.BARRIER):
        return Signature(op.kind, [], [])
    rows = [n + (rank + op.uid // 4) % 3 if op.kind == Kind.ALLGATHER else n for n in op.rows]
    if op.kind == Kind.ALLTOALL:
        splits = [n + op.rows[0] for n, _ in enumerate(sets[op.where])]
        return Signature(op.kind, [DType.FLOAT32], [[sum(splits)]], splits=splits)
    return Signature(op.kind, [DType.FLOAT32] * len(rows), [[n] for n in rows], op.op, root=op.root)


def home(op: Op) -> str:
    """Where a call is negotiated: changes of process sets are a matter of all ranks."""
    return "all" if op.kind in (Kind.ADD_SET, Kind.REMOVE_SET, Kind.JOIN) else op.where


def key_of(op: Op) -> tuple[str, str]:
    return (home(op), "join" if op.kind == Kind.JOIN else op.name)


def waits(op: Op) -> bool:
    """Calls that a rank makes with nothing in flight, and waits for."""
    return op.kind in (Kind.ADD_SET, Kind.REMOVE_SET, Kind.JOIN)


@final
class Rank:
    """The part of a worker that both sides share: which call may come next."""

    def __init__(self, program: Sequence[Op], window: int, sets: set[str]) -> None:
        self.program, self.window, self.sets, self.position = program, window, set(sets), 0
        self.inflight: dict[tuple[str, str], int] = {}

    def may_submit(self) -> bool:
        if self.position == len(self.program):
            return False
        op = self.program[self.position]
        held = any(waits(self.program[i]) for i in self.inflight.values())
        full = len(self.inflight) >= (1 if waits(op) else self.window)
        unknown = op.kind not in (Kind.ADD_SET, Kind.JOIN) and op.where not in self.sets
        return not (held or full or unknown or key_of(op) in self.inflight)

    def submit(self) -> Op:
        op = self.program[self.position]
        self.inflight[key_of(op)] = self.position
        self.position += 1
        return op

    def learn(self, op: Op) -> None:
        if op.kind == Kind.ADD_SET:
            self.sets.add(op.where)
        elif op.kind == Kind.REMOVE_SET:
            self.sets.discard(op.where)


def model(programs: Programs, sets: dict[str, tuple[int, ...]], static: set[str], window: int) -> Outcomes:
    """The sequential meaning: all submit what they may, then whatever is complete happens, until nothing moves."""
    ranks = [Rank(program, window, static) for program in programs]
    outcomes: Outcomes = {}
    alive, moved = set(static), True
    while moved:
        moved = False
        for rank in ranks:
            while rank.may_submit():
                rank.submit()
                moved = True
        joined = {r for r, rank in enumerate(ranks) if ("all", "join") in rank.inflight}
        for key in sorted({key for rank in ranks for key in rank.inflight}):
            here = {r: rank.inflight[key] for r, rank in enumerate(ranks) if key in rank.inflight}
            idle = set() if key[1] == "join" else joined
            if key[0] in alive and not set(sets[key[0]]) <= {*here, *idle}:
                continue
            moved = True
            ops = {r: ranks[r].program[i] for r, i in here.items()}
            good = key[0] in alive and len({op.kind for op in ops.values()}) == 1 and agree(ops)
            first = next(iter(ops.values()))
            if good and first.kind in (Kind.ADD_SET, Kind.REMOVE_SET):
                adds = first.kind == Kind.ADD_SET
                good = len(here) == len(ranks) and (first.where in alive) != adds  # one that has joined would not know
                alive = {*alive, first.where} if adds and good else alive - ({first.where} if good else set())
            for r, position in here.items():
                del ranks[r].inflight[key]
                outcomes[r, position] = ("ok", *((x, ops[x].uid) for x in sorted(ops))) if good else ("error",)
                if good:
                    ranks[r].learn(ops[r])
    return outcomes


def agree(ops: dict[int, Op]) -> bool:
    """What the ranks say is compatible: told by the calls themselves, not by their signatures."""
    first = next(iter(ops.values()))
    if first.kind in (Kind.BARRIER, Kind.JOIN):
        return True
    if first.kind in (Kind.ADD_SET, Kind.REMOVE_SET):
        return len({op.where for op in ops.values()}) == 1
    if first.kind == Kind.ALLTOALL:
        return True
    if first.kind == Kind.ALLGATHER:
        return len({len(op.rows) for op in ops.values()}) == 1
    same = len({op.rows for op in ops.values()}) == 1
    if first.kind == Kind.BROADCAST:
        return same and len({op.root for op in ops.values()}) == 1 and first.root in ops
    return same and len({op.op for op in ops.values()}) == 1


class Simulation(ABC):
    """Ranks, and first-in-first-out wires to and from what coordinates them; ``step`` moves something, anything."""

    def __init__(self, job: Job, rng: random.Random) -> None:
        self.rng, self.sets, self.fusion = rng, job.sets, job.fusion
        self.ranks = [Rank(program, job.window, {"all", *job.static}) for program in job.programs]
        self.labels = {0: "all"} | {i + 1: label for i, label in enumerate(job.static)}
        self.ids = [{label: i for i, label in self.labels.items()} for _ in job.programs]
        self.known: list[dict[tuple[str, str], tuple[int, Signature]]] = [{} for _ in job.programs]
        self.out: list[list[list[Entry]]] = [[] for _ in job.programs]
        self.inbox: list[list[Order | tuple[int, str]]] = [[] for _ in job.programs]
        self.done: dict[tuple[int, int], dict[int, int]] = {}  # order and place in it: position by rank
        self.outcomes: Outcomes = {}
        self.gone = set[int]()

    @abstractmethod
    def arrive(self, r: int) -> None:
        """What rank ``r`` has sent, the oldest of it, arrives."""

    @abstractmethod
    def inner(self) -> Iterator[Move]:
        """What else may happen between the ranks."""

    @abstractmethod
    def leave(self, r: int) -> None:
        """Rank ``r`` calls ``shutdown``."""

    def step(self) -> bool:
        """Let one of the things happen that may; False if there is none."""
        moves = list(self.inner())
        for r, rank in enumerate(self.ranks):
            if r not in self.gone:
                moves += [partial(self.submit, r)] if rank.may_submit() else []
                moves += [partial(self.arrive, r)] if self.out[r] else []
                moves += [partial(self.deliver, r)] if self.inbox[r] else []
        if moves:
            self.rng.choice(moves)()
        return bool(moves)

    def submit(self, r: int) -> None:
        rank = self.ranks[r]
        self.out[r].append([self.entry(r, rank.submit()) for _ in range(self.rng.randint(1, 3)) if rank.may_submit()])

    def entry(self, r: int, op: Op) -> Entry:
        key, signature = key_of(op), signature_of(op, r, self.sets, self.ids[r])
        number, known = self.known[r].get(key, (-1, None))
        if known == signature:
            return Entry(self.ids[r][key[0]], key[1], number)
        return Entry(self.ids[r][key[0]], key[1], signature=signature)

    def check(self, order: Order) -> None:
        """What holds of every order by itself."""
        if order.kind == Kind.ADD_SET and not order.error:
            new = tuple(order.signatures[0].splits)
            self.labels[order.value] = next(label for label, own in self.sets.items() if own == new)
        members = self.sets[self.labels[order.process_set]]
        sizes = [ROW_BYTES * sum(shape[0] for shape in s.shapes) for s in order.signatures if s.shapes]
        assert len(order.names) == len(order.signatures) == len(set(order.names))
        assert len(order.names) == 1 or (order.kind == Kind.ALLREDUCE and sum(sizes) <= self.fusion)
        assert {s.kind for s in order.signatures} == {order.kind}
        assert len(order.names) == 1 or ReduceOp.ADASUM not in {s.op for s in order.signatures}
        if not order.error:
            assert len(order.cached) == len(order.names)
            assert set(order.joined) < set(members)

    def deliver(self, r: int) -> None:
        order, rank = self.inbox[r].pop(0), self.ranks[r]
        if isinstance(order, tuple):
            key = (self.labels[order[0]], order[1])
            self.known[r].pop(key)
            op = rank.program[rank.inflight[key]]
            self.out[r].append([Entry(*order, signature=signature_of(op, r, self.sets, self.ids[r]))])
            return
        label = self.labels[order.process_set]
        for i, name in enumerate(order.names):
            key = (label, "join" if order.kind == Kind.JOIN else name)
            if r in order.joined:
                assert key not in rank.inflight
                continue
            op = rank.program[position := rank.inflight.pop(key)]
            if order.error:
                assert f"{Kind(order.signatures[0].kind).label} '" in order.error
                self.outcomes[r, position] = ("error",)
                continue
            assert op.kind == order.kind
            self.done.setdefault((order.sequence, i), {})[r] = position
            self.learn(r, op, order, i)

    def learn(self, r: int, op: Op, order: Order, i: int) -> None:
        self.ranks[r].learn(op)
        if op.kind == Kind.ADD_SET:
            self.ids[r][op.where] = order.value
        members, mine = self.sets[home(op)], self.sets[home(op)].index(r)
        signature = signature_of(op, r, self.sets, self.ids[r])
        if op.kind == Kind.ALLGATHER:
            tensors = len(op.rows)
            assert order.dims[i][mine * tensors : (mine + 1) * tensors] == [shape[0] for shape in signature.shapes]
            assert all(order.dims[i][members.index(j) * tensors] == 0 for j in order.joined)
        if op.kind == Kind.ALLTOALL:
            assert order.splits[i][mine * len(members) : (mine + 1) * len(members)] == signature.splits
        assert op.kind != Kind.JOIN or 0 <= order.value < len(self.ranks)
        if order.cached[i] >= 0:
            self.known[r][key_of(op)] = (order.cached[i], signature)

    def finish(self) -> Outcomes:
        for by_rank in self.done.values():
            who = [(r, self.ranks[r].program[position].uid) for r, position in sorted(by_rank.items())]
            self.outcomes.update(dict.fromkeys(by_rank.items(), ("ok", *who)))
        return self.outcomes


@final
@dataclass
class Job:
    """What hypothesis draws."""

    programs: Programs
    sets: dict[str, tuple[int, ...]]
    static: list[str]
    faults: int
    window: int
    fusion: int
    capacity: int
    seeds: list[int]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    rng = random.Random(draw(st.integers(0, 2**32)))
    size = draw(st.integers(1, 5))
    sets = {"all": tuple(range(size))}
    for label in ("s", "t", "u"):
        ranks = tuple(sorted(rng.sample(range(size), rng.randint(1, size))))
        if ranks not in sets.values():
            sets[label] = ranks
    static = [label for label in sets if label != "all" and rng.random() < 0.5]
    faults = draw(st.integers(0, 3))
    programs = draw_programs(rng, sets, static, draw(st.integers(0, 40)))
    for _ in range(faults):
        spoil(rng, rng.choice(programs))
    window, capacity = draw(st.sampled_from([8, 4, 2, 1])), draw(st.sampled_from([3, 2, 1, 100, 0]))
    fusion = draw(st.sampled_from([1000, 3 * ROW_BYTES, 0]))
    seeds = draw(st.lists(st.integers(0, 2**32), min_size=2, max_size=2))
    return Job(programs, sets, static, faults, window, fusion, capacity, seeds)


def draw_programs(rng: random.Random, sets: dict[str, tuple[int, ...]], static: list[str], length: int) -> Programs:
    programs: Programs = [[] for _ in sets["all"]]
    alive = {"all", *static}
    begun = [0 for _ in programs]  # where this rank's calls since the last join or change of sets begin
    habits: dict[tuple[str, str], Op] = {}
    for uid in range(length):
        op = draw_op(rng, uid, sets, alive)
        if not waits(op) and rng.random() < 0.9:  # a training loop says the same again and again
            op = replace(habits.setdefault(key_of(op), op), uid=uid)
        if op.kind == Kind.JOIN:
            for r, program in enumerate(programs):
                del program[rng.randint(begun[r], len(program)) :]
        for r in sets[home(op)]:
            programs[r].append(op)
        if waits(op):
            begun = [len(program) for program in programs]
    return programs


def draw_op(rng: random.Random, uid: int, sets: dict[str, tuple[int, ...]], alive: set[str]) -> Op:
    chance = rng.random()
    if chance < 0.05:
        return Op(uid, Kind.JOIN)
    dynamic = [label for label in sets if label != "all"]
    if chance < 0.1 and dynamic:
        label = rng.choice(dynamic)
        kind = Kind.REMOVE_SET if label in alive else Kind.ADD_SET
        alive.symmetric_difference_update({label})
        return Op(uid, kind, "set", label)
    where = rng.choice(sorted(alive))
    kind = rng.choice(
        [Kind.ALLREDUCE] * 4 + [Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL, Kind.REDUCESCATTER, Kind.BARRIER]
    )
    rows = (rng.randint(1, 2),) * (rng.choice([1, 1, 3]) if kind in (Kind.ALLREDUCE, Kind.ALLGATHER) else 1)
    op = ReduceOp.ADASUM if rng.random() < 0.1 else ReduceOp.SUM
    return Op(uid, kind, rng.choice("abcde"), where, rows, op, rng.choice(sets[where]))


def spoil(rng: random.Random, program: list[Op]) -> None:
    """One rank does something else than the others."""
    if not program:
        return
    i = rng.randrange(len(program))
    how = rng.choice(["skip", "differ", "differ", "differ", "swap", "again"])
    op = program[i]
    if how == "skip":
        del program[i]
    elif how == "differ":
        longer = op.rows if op.kind == Kind.ALLTOALL else (*op.rows, 1)
        others = [replace(op, rows=longer), replace(op, rows=(3,) * len(op.rows)), replace(op, root=op.root + 1)]
        program[i] = rng.choice([*others, replace(op, op=ReduceOp.MAX)])
    elif how == "swap" and i:
        program[i - 1], program[i] = program[i], program[i - 1]
    else:
        program.insert(i, op)
