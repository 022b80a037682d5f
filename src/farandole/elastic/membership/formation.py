"""The generations of an elastic job, as its membership decides; without any I/O.

    formation = ElasticFormation(Membership(Policy.of(settings)), engine, time.monotonic)
    formation.tell(Found({"a": 2, "b": 2}))
    controller = Controller(send, settings, ANY, time.monotonic, formation)
    while formation.orders:                     # after each of the controller's turns
        obey(formation.orders.popleft())        # Start, Kill, Finish

The controller says what it hears of workers and obeys what concerns them; the rest is for the launcher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

from farandole import events
from farandole.control.messages import Hello
from farandole.elastic.membership import decisions, happenings
from farandole.elastic.membership.journal import Recorded
from farandole.elastic.membership.membership import Membership
from farandole.errors import FarandoleError
from farandole.runtime.coordination.formation import (
    Choose,
    Decision,
    Deferred,
    Due,
    Formation,
    Formed,
    Member,
    Over,
    Refused,
    disagreement,
)


@final
class ElasticFormation(Formation):
    """Stands between the controller, which knows sockets and ranks, and the membership, which knows places."""

    def __init__(self, membership: Membership | Recorded, choose: Choose, clock: Callable[[], float]) -> None:
        super().__init__()
        self.orders: deque[decisions.Decision] = deque()
        """What the launcher is to do."""
        self.on_decision: Callable[[decisions.Decision], object] = lambda _: None
        """Told of everything that was decided, whoever does it."""
        self.on_over: Callable[[str], object] = lambda _: None
        """Told why a generation has ended, where that was not decided here."""
        self._membership, self._choose, self._clock = membership, choose, clock
        self._known: dict[int, Member] = {}  # as they said hello last
        self._seniors = {place for place, worker in membership.workers.items() if worker.senior}  # have been members
        self._formed: tuple[Member, ...] = ()
        self._due: deque[Decision] = deque()
        self._is_news = False
        self._handlers: dict[type, Callable[[Any, str], None]] = {
            decisions.Form: self._form,
            decisions.Greet: self._greet,
            decisions.Refuse: self._refuse,
            decisions.Dismiss: self._dismiss,
            decisions.Announce: lambda _, reason: self._due.append(Due(reason)),
            decisions.Abort: lambda _, reason: self._due.append(Over(reason)),
        }

    @property
    def membership(self) -> Membership | Recorded:
        """What decides; to be looked at only."""
        return self._membership

    def tell(self, event: happenings.Any) -> None:
        """Something has happened that the controller does not know."""
        self._membership.on(self._clock(), event)
        self._is_news = True

    # -- what the controller says -------------------------------------------------------------------------------------

    def started(self, place: int, description: str) -> None:
        """See ``Formation``."""
        self.tell(happenings.Started(place))

    def turn_away(self, uid: bytes, hello: Hello) -> str:
        """See ``Formation``."""
        taken = self.occupants.objection(hello)
        if taken:
            self._due.append(Refused((Member(uid, hello),), taken))
        return taken

    def hello(self, uid: bytes, hello: Hello, now: float) -> None:
        """See ``Formation``."""
        member = Member(uid, hello)
        self.occupants.enter(uid, hello)
        reference = self._formed or tuple(self._known.values())
        is_new = hello.place not in self._seniors
        misfit = disagreement((reference[0], member)) if reference and is_new else ""
        self._known[hello.place] = member
        if hello.step_s > 0:
            self.paced(hello.step_s)
        self._membership.on(now, happenings.Came(hello.place, hello.ready, hello.state_step))
        if misfit:
            self.tell(happenings.Unfit(hello.place, misfit))
        self._is_news = True

    def gone(self, place: int, pid: int, code: int, description: str) -> None:
        """See ``Formation``."""
        self.occupants.leave(place)
        self._known.pop(place, None)
        self._seniors.discard(place)
        self.tell(happenings.Ended(place, code, description))

    def left(self, place: int, ending: bool) -> None:
        """See ``Formation``."""
        self.occupants.leave(place)
        self.tell(happenings.Left(place, ending))

    def answered(self, place: int) -> None:
        """See ``Formation``."""
        self.tell(happenings.Answered(place))

    def over(self, generation: int, reason: str) -> None:
        """See ``Formation``."""
        self.on_over(reason)
        self.tell(happenings.Over(generation, reason))

    def paced(self, step_s: float) -> None:
        """See ``Formation``."""
        self.tell(happenings.Paced(step_s))

    def stalled(self, places: Collection[int], reason: str) -> bool:
        """See ``Formation``."""
        for place in places:
            self.tell(happenings.Hung(place, reason))
        return bool(places)

    # -- what follows -------------------------------------------------------------------------------------------------

    @property
    def deadline_s(self) -> float | None:
        """See ``Formation``."""
        return 0.0 if self._is_news or self._due else self._membership.deadline_s

    def decide(self, now: float) -> Decision | None:
        """See ``Formation``."""
        is_over = False
        while not self._due and not is_over:
            self._is_news = False
            for decision in self._membership.decide(now):
                self._take(decision)
            is_over = not self._is_news
        return self._due.popleft() if self._due else None

    def _take(self, decision: decisions.Decision) -> None:
        events.logger.debug("decided: %s (%s)", decision.action, decision.reason)
        self.on_decision(decision)
        handler = self._handlers.get(type(decision.action))
        if handler is None:
            self.orders.append(decision)
        else:
            handler(decision.action, decision.reason)

    def _form(self, action: decisions.Form, _: str) -> None:
        if strangers := self._strangers(action.places):
            self._undo(action, strangers)
            return
        try:
            engine, reason = self._choice(action.places)
        except FarandoleError as failure:
            new = [place for place in action.places if place not in self._seniors]
            self._undo(action, dict.fromkeys(new if len(new) < len(action.places) else action.places, str(failure)))
            return
        self._formed = self._members(action.places)
        self._seniors.update(action.places)
        self._due.append(Formed(action.generation, self._formed, engine, reason))

    def _choice(self, places: Collection[int]) -> tuple[str, str]:
        """The engine of a generation of these, as far as they are known, and why."""
        hellos = [member.hello for member in self._members(places)]
        return self._choose([hello.host for hello in hellos], [_that_form_again(hello.engines) for hello in hellos])

    def _strangers(self, places: Sequence[int]) -> dict[int, str]:
        """Those that are new and do not fit to the oldest, who may have said only now what it trains; and why."""
        oldest = self._known[places[0]]
        new = {place: disagreement((oldest, self._known[place])) for place in places if place not in self._seniors}
        return {place: misfit for place, misfit in new.items() if misfit}

    def _undo(self, action: decisions.Form, unfit: Mapping[int, str]) -> None:
        """It cannot be with those that are ``unfit``, for these reasons. The others still wait."""
        self.tell(happenings.Over(action.generation, next(iter(unfit.values()))))
        for place in action.places:
            if place in unfit:
                self.tell(happenings.Unfit(place, unfit[place]))
            else:
                self.tell(happenings.Came(place, ready=True, step=self._known[place].hello.state_step))

    def _greet(self, action: decisions.Greet, reason: str) -> None:
        rank = action.places.index(action.place)
        where = {place: worker.slot.host for place, worker in self._membership.workers.items()}
        where |= {place: member.hello.host for place, member in self._known.items()}  # not those of another controller
        hosts = tuple(where[place] for place in action.places)
        try:
            engine = self._choice(action.places)[0]
        except FarandoleError:
            engine = "solo"  # there is time to say so when it is ready
        self._due.append(Deferred((self._known[action.place],), rank, hosts, engine, reason))

    def _refuse(self, action: decisions.Refuse, reason: str) -> None:
        self._due.append(Refused(self._members(action.places), reason))

    def _dismiss(self, action: decisions.Dismiss, reason: str) -> None:
        self._due.append(Refused(self._members(action.places), reason, orderly=True))

    def _members(self, places: Collection[int]) -> tuple[Member, ...]:
        return tuple(self._known[place] for place in places if place in self._known)


def _that_form_again(engines: list[str]) -> list[str]:
    """Without MPI: the processes of an MPI end together, and no other can join them."""
    return [engine for engine in engines if engine != "mpi"]
