"""A modelled run: its log of leaders, the leaders, and workers that vote on steps. Each move is atomic.

    world = LeadWorld.of(LeadSetup(own=1, lent=2, leads=2))
    for move in world.moves(): following = world.after(move)
    world.fault                                         # what is broken that must hold; "", it is hoped

There is no clock: any part may stop for any time and then go on, like a stopped process, a partition or a late message.
The model covers the rule of ``farandole.launch.hosts.leader_log``; a generation is identified by the number of its
entry there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, final

NOWHERE = -1
"""Generation of a worker that is in none, and waits in ``init``."""


@final
class LeadSetup(NamedTuple):
    """Setup: workers of the first leader, and lent workers; number of leaders; steps of the training; and the rules.

    The log has at most so many ``entries``, because a generation may be left and formed again without end.

    The rules can be broken, to check that the search notices: ``asks_log``: a leader forms nothing that is not in the
    log. ``adopts_member``: a later leader begins with a member of the last generation. ``needs_all``: a step needs all
    ranks, and not half of them.
    """

    own: int = 1
    lent: int = 2
    leads: int = 2
    steps: int = 2
    deaths: int = 0
    entries: int = 5
    asks_log: bool = True
    adopts_member: bool = True
    needs_all: bool = True


class SimulatedEntry(NamedTuple):
    """Entry of the log: the epoch of a leader, and the members of the generation that it formed (none: it began)."""

    epoch: int
    members: tuple[int, ...] = ()


class SimulatedLead(NamedTuple):
    """A leader: its epoch (0: not begun), the last entry that it has read, and the workers that it wants to form."""

    epoch: int = 0
    read: int = 0
    wishes: tuple[int, ...] = ()
    is_over: bool = False


class SimulatedRank(NamedTuple):
    """A worker: its leader, its generation, its step, and whether it has voted for the next step.

    ``was``: the last generation that it was in, or was asked to join; since its first one it ``holds`` the state.
    """

    lead: int
    generation: int = NOWHERE
    was: int = NOWHERE
    holds: bool = False
    step: int = 0
    has_voted: bool = False
    is_lent: bool = False
    is_dead: bool = False


Move: TypeAlias = tuple[str, int]


@final
class LeadWorld(NamedTuple):
    """State of a run. ``parts`` are parts of votes in generations that have workers: generation, step, worker.

    ``voted`` is the last vote that was complete in time: its generation and step; ``begun`` are the generations that
    workers have joined, with their first steps.
    """

    setup: LeadSetup
    log: tuple[SimulatedEntry, ...]
    leads: tuple[SimulatedLead, ...]
    ranks: tuple[SimulatedRank, ...]
    parts: frozenset[tuple[int, int, int]] = frozenset()
    voted: tuple[int, int] = (NOWHERE, NOWHERE)
    begun: tuple[tuple[int, int], ...] = ()
    deaths: int = 0
    fault: str = ""

    @classmethod
    def of(cls, setup: LeadSetup) -> LeadWorld:
        """A run whose first leader is about to begin."""
        ranks = [SimulatedRank(1, is_lent=False)] * setup.own + [SimulatedRank(1, is_lent=True)] * setup.lent
        return cls(setup, (), (SimulatedLead(),) * (setup.leads + 1), tuple(ranks), deaths=setup.deaths)

    # -- what can happen ----------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:
        """Everything that can happen next."""
        for number in range(1, len(self.leads)):
            yield from self._moves_of_lead(number)
        for worker, rank in enumerate(self.ranks):
            if not rank.is_dead:
                yield from self._moves_of_rank(worker, rank)
                if self.deaths:
                    yield "die", worker

    def _moves_of_lead(self, number: int) -> Iterator[Move]:
        lead = self.leads[number]
        if not lead.epoch:
            if number == 1 or self.leads[number - 1].epoch:
                yield "take", number
        elif not lead.is_over:
            if lead.read < len(self.log):
                yield "read", number
            if not lead.wishes and self.ready(number):
                yield "wish", number
            if lead.wishes:
                yield "claim", number

    def _moves_of_rank(self, worker: int, rank: SimulatedRank) -> Iterator[Move]:
        later = [number for number, lead in enumerate(self.leads) if lead.epoch > self.leads[rank.lead].epoch]
        if rank.is_lent and later:
            yield "turn", worker
        if rank.generation == NOWHERE:
            if self._invited(worker, rank) != NOWHERE:
                yield from (("join", worker), ("decline", worker))
            return
        yield "leave", worker
        if rank.step < self.setup.steps and not rank.has_voted:
            yield "vote", worker
        if rank.has_voted and self._is_complete(rank.generation, rank.step):
            yield "apply", worker

    @property
    def last(self) -> int:
        """Number of the generation that was formed last."""
        return next((index for index in range(len(self.log) - 1, -1, -1) if self.log[index].members), NOWHERE)

    def ready(self, number: int) -> tuple[int, ...]:
        """Workers that wait for this leader, if it may form a generation with them by the entries that it has read.

        Workers that were in an earlier generation and not in the last are refused: they were given up.
        """
        known = self.log[: self.leads[number].read]
        members = next((entry.members for entry in reversed(known) if entry.members), ())
        waiting = [
            w
            for w, rank in enumerate(self.ranks)
            if (rank.lead, rank.generation, rank.is_dead) == (number, NOWHERE, False)
        ]
        free = [w for w in waiting if self._invited(w, self.ranks[w]) == NOWHERE]
        fit = tuple(w for w in free if w in members or self.ranks[w].was == NOWHERE)
        if not members or not self.setup.adopts_member:
            return fit
        # If no worker has trained yet, no worker has a state, either.
        may_begin = not self.begun
        return fit if any(w in members and (self.ranks[w].holds or may_begin) for w in fit) else ()

    def _invited(self, worker: int, rank: SimulatedRank) -> int:
        """Generation that the worker's leader has formed with it, and that it was never in."""
        own = [index for index, entry in enumerate(self.log) if entry.epoch == rank.lead and entry.members]
        return own[-1] if own and own[-1] > rank.was and worker in self.log[own[-1]].members else NOWHERE

    def _is_complete(self, generation: int, step: int) -> bool:
        members = self.log[generation].members
        came = {worker for at, of, worker in self.parts if (at, of) == (generation, step)}
        return came >= set(members) if self.setup.needs_all else len(came) * 2 >= len(members)

    # -- what follows -------------------------------------------------------------------------------------------------

    def after(self, move: Move) -> LeadWorld:
        """The world after one of ``moves``."""
        kind, who = move
        if kind in ("take", "read", "wish", "claim"):
            return getattr(self, f"_{kind}")(who, self.leads[who])  # type: ignore[no-any-return]
        return getattr(self, f"_{kind}")(who, self.ranks[who])  # type: ignore[no-any-return]

    def _take(self, number: int, _: SimulatedLead) -> LeadWorld:
        """Begin the next epoch, as a new process that reads the whole log; other leaders find that later."""
        log = (*self.log, SimulatedEntry(number))
        return self._replace(log=log)._led(number, SimulatedLead(number, len(log)))

    def _read(self, number: int, lead: SimulatedLead) -> LeadWorld:
        entry = self.log[lead.read]
        return self._led(number, lead._replace(read=lead.read + 1, is_over=entry.epoch > lead.epoch))

    def _wish(self, number: int, lead: SimulatedLead) -> LeadWorld:
        return self._led(number, lead._replace(wishes=self.ready(number)))

    def _claim(self, number: int, lead: SimulatedLead) -> LeadWorld:
        """Link the next number, which fails if the number is taken."""
        is_taken = lead.read < len(self.log)
        if is_taken and self.setup.asks_log:
            return self._read(number, lead)
        log = (*self.log, SimulatedEntry(number, lead.wishes))
        return self._replace(log=log)._led(number, lead._replace(read=len(log), wishes=()))

    def _turn(self, worker: int, rank: SimulatedRank) -> LeadWorld:
        """Find the latest leader in the folder, and follow it from now on."""
        last = max(range(len(self.leads)), key=lambda number: self.leads[number].epoch)
        return self._ranked(worker, rank._replace(lead=last))

    def _join(self, worker: int, rank: SimulatedRank) -> LeadWorld:
        """Begin to train, with the newest state among the members of the generation."""
        generation = self._invited(worker, rank)
        begun = dict(self.begun)
        step = begun.setdefault(generation, max(self.ranks[each].step for each in self.log[generation].members))
        return self._replace(begun=tuple(sorted(begun.items())))._ranked(
            worker, rank._replace(generation=generation, was=generation, holds=True, step=step, has_voted=False)
        )

    def _decline(self, worker: int, rank: SimulatedRank) -> LeadWorld:
        """Reconnect, because the message of its generation is lost."""
        return self._ranked(worker, rank._replace(was=self._invited(worker, rank)))

    def _leave(self, worker: int, rank: SimulatedRank) -> LeadWorld:
        return self._ranked(worker, rank._replace(generation=NOWHERE, has_voted=False))

    def _vote(self, worker: int, rank: SimulatedRank) -> LeadWorld:
        parts = self.parts | {(rank.generation, rank.step, worker)}
        world = self._ranked(worker, rank._replace(has_voted=True))._replace(parts=parts)
        return world._voted(rank.generation, rank.step) if world._is_complete(rank.generation, rank.step) else world

    def _voted(self, generation: int, step: int) -> LeadWorld:
        """Note that all parts of a vote have arrived; a late part can only be of the present step.

        A later generation repeats that step: it began before any rank of this one had applied it.
        """
        later = min((each for each in self.begun if each[0] > generation), default=None)
        if later is not None and step != later[1]:
            return self._replace(
                fault=f"generation {generation} votes for step {step} after generation {later[0]} began"
            )
        if later is not None:
            return self
        if self.voted[1] not in (NOWHERE, step, step - 1):
            return self._replace(fault=f"step {step} is voted for after step {self.voted[1]}")
        return self._replace(voted=(generation, step))

    def _apply(self, worker: int, rank: SimulatedRank) -> LeadWorld:
        return self._ranked(worker, rank._replace(step=rank.step + 1, has_voted=False))

    def _die(self, worker: int, rank: SimulatedRank) -> LeadWorld:
        return self._ranked(worker, rank._replace(is_dead=True))._replace(deaths=self.deaths - 1)

    def _led(self, number: int, lead: SimulatedLead) -> LeadWorld:
        return self._replace(leads=(*self.leads[:number], lead, *self.leads[number + 1 :]))

    def _ranked(self, worker: int, rank: SimulatedRank) -> LeadWorld:
        ranks = (*self.ranks[:worker], rank, *self.ranks[worker + 1 :])
        there = {each.generation for each in ranks}
        return self._replace(ranks=ranks, parts=frozenset(part for part in self.parts if part[0] in there))
