"""Record of leases, out of what agents say and what looks show."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.control.agent_messages import LeaseOffer
from farandole.launch.leases.lease import Lease, LeasePhase
from farandole.launch.leases.lease_table import CLEAN_LOOKS, PARTIAL_S, LeaseTable
from farandole.launch.leases.observation import OutsideCancel, OutsideHold, OutsideLimit, OutsideSuspend
from farandole.launch.leases.scheduler import JobPhase, JobView

LIKE = Lease("", workers=2, nodes=1, length_s=3600.0)
HOUR_S = 3600.0


def book(count: int = 1) -> LeaseTable:
    made = LeaseTable()
    made.submitted("8", count, LIKE, 0.0)
    return made


def phases(of: LeaseTable) -> list[LeasePhase]:
    return [lease.phase for lease in of.leases]


def terms(index: int, node: str = "n", restart: int = 0) -> LeaseOffer:
    return LeaseOffer("8", index, restart, "x", node, 2)


def test_a_life_of_a_lease() -> None:
    own = book()
    found = [phases(own)[0]]
    own.told("8_0", LeasePhase.ASKED, 10.0)
    found += phases(own)
    own.look("8", {0: JobView(JobPhase.PENDING, starts_s=60.0)}, 20.0)
    assert own.leases[0].starts_s == 60.0
    found += phases(own)
    own.look("8", {0: JobView(JobPhase.RUNNING, ("n",), ends_s=3700.0)}, 100.0)
    found += phases(own)
    own.admit(terms(0), 110.0)
    found += phases(own)
    own.train({"n+8_0"}, 120.0)
    found += phases(own)
    own.mark_leaving("n+8_0", "an order", 1900.0)
    found += phases(own)
    own.gone("n+8_0", "its workers have left", 1900.0)
    found += phases(own)
    assert found == list(LeasePhase)
    assert own.leases[0].cause == "an order"
    assert own.node_hours(9999.0) == 0.5
    assert own.orders() == ()
    own.forget()
    assert own.leases == ()


def test_an_agent_counts_before_a_look_that_does_not_show_its_job() -> None:
    own = book()
    own.admit(terms(0), 5.0)
    for _ in range(2 * CLEAN_LOOKS):
        own.look("8", {}, 10.0)
    own.look("8", {0: JobView(JobPhase.GONE)}, 10.0)
    assert phases(own) == [LeasePhase.WARMING]


def test_a_lease_is_gone_after_several_looks_and_not_after_one() -> None:
    own = book()
    own.told("8_0", LeasePhase.ASKED, 0.0)
    found = []
    for _ in range(CLEAN_LOOKS):
        found += phases(own)
        own.look("8", {}, 10.0)
    assert LeasePhase.GONE not in found
    assert phases(own) == [LeasePhase.GONE]
    assert own.orders() == (OutsideCancel("8_0"),)


def test_what_is_cancelled_here_is_no_order_of_others() -> None:
    own = book()
    own.told("8_0", LeasePhase.ASKED, 0.0)
    own.told("8_0", LeasePhase.GONE, 1.0)
    own.look("8", {0: JobView(JobPhase.GONE)}, 10.0)
    assert phases(own) == [LeasePhase.GONE]
    assert own.orders() == ()


def test_a_lease_of_two_nodes_is_a_member_when_both_are_and_gone_with_the_last() -> None:
    own = LeaseTable()
    own.submitted("8", 1, Lease("", workers=4, nodes=2), 0.0)
    own.admit(terms(0, "a"), 1.0)
    own.admit(terms(0, "b"), 2.0)
    own.train({"a+8_0"}, 3.0)
    assert phases(own) == [LeasePhase.WARMING]
    own.train({"a+8_0", "b+8_0"}, 4.0)
    assert (own.leases[0].phase, own.leases[0].workers, own.leases[0].nodes) == (LeasePhase.MEMBER, 4, 2)
    own.gone("a+8_0", "lost", 5.0)
    assert phases(own) == [LeasePhase.MEMBER]
    own.gone("b+8_0", "lost", 6.0)
    assert phases(own) == [LeasePhase.GONE]


def test_holds_and_limits_of_others_are_orders_and_told_once() -> None:
    own = book(2)
    own.told("8_0", LeasePhase.ASKED, 0.0)
    for _ in range(2):
        own.look("8", {0: JobView(JobPhase.HELD), 1: JobView(JobPhase.BARRED)}, 10.0)
    assert own.orders() == (OutsideHold("8_0"), OutsideHold("8_1", barred=True))
    assert phases(own) == [LeasePhase.HELD, LeasePhase.HELD]
    own.told("8_0", LeasePhase.ASKED, 20.0)
    own.look("8", {0: JobView(JobPhase.RUNNING, ends_s=100.0), 1: JobView(JobPhase.BARRED)}, 30.0)
    own.look("8", {0: JobView(JobPhase.RUNNING, ends_s=130.0), 1: JobView(JobPhase.BARRED)}, 40.0)
    assert own.orders() == ()
    own.look("8", {0: JobView(JobPhase.RUNNING, ends_s=1000.0), 1: JobView(JobPhase.BARRED)}, 50.0)
    assert own.orders() == (OutsideLimit("8_0"),)
    assert own.leases[0].ends_s == 1000.0


def test_a_look_from_before_a_release_says_nothing_of_a_hold() -> None:
    own = book(1)
    own.releasing("8_0", 0.0)
    own.look("8", {0: JobView(JobPhase.HELD)}, 10.0)  # the scheduler has many calls to answer, in their order
    assert (own.orders(), phases(own)) == ((), [LeasePhase.ASKED])
    own.released("8_0")
    own.look("8", {0: JobView(JobPhase.HELD)}, 20.0)
    assert own.orders() == (OutsideHold("8_0"),)


def test_what_people_lend_is_a_lease_too() -> None:
    own = LeaseTable()
    own.admit(LeaseOffer("guest-1f", -1, 0, "x", "n", 3, 500.0), 1.0)
    [lease] = own.leases
    assert (lease.job, lease.workers, lease.nodes, lease.ends_s) == ("guest-1f", 3, 1, 500.0)


def test_another_controller_goes_on_with_what_was_known() -> None:
    own = book(2)
    own.admit(terms(0), 0.0)
    again = LeaseTable()
    again.restore(own.leases, own.node_hours(HOUR_S), HOUR_S)
    again.admit(terms(0), HOUR_S + 1)
    again.train({"n+8_0"}, HOUR_S + 2)
    assert phases(again) == [LeasePhase.MEMBER, LeasePhase.HELD]
    assert again.node_hours(2 * HOUR_S) == 2.0


VIEWS = st.sampled_from([None, *JobPhase])


@given(st.lists(st.one_of(VIEWS, st.sampled_from(["ask", "call", "train", "leave", "lose"])), max_size=30))
def test_no_order_of_things_brings_back_what_is_gone_or_counts_time_twice(story: list[object]) -> None:
    own, gone = book(), False
    for at_s, event in enumerate(story, 1):
        if event == "ask" and own.leases[0].phase is LeasePhase.HELD:
            own.told("8_0", LeasePhase.ASKED, at_s)
        elif event == "call" and not gone and not own.hosts("8_0"):
            own.admit(terms(0), at_s)
        elif event == "train":
            own.train(set(own.hosts("8_0")), at_s)
        elif event == "leave":
            own.mark_leaving("n+8_0", "", at_s)
        elif event == "lose":
            own.gone("n+8_0", "", at_s)
        elif event is None or isinstance(event, JobPhase):
            own.look("8", {} if event is None else {0: JobView(event)}, at_s)
        assert not gone or own.leases[0].phase is LeasePhase.GONE
        gone = own.leases[0].phase is LeasePhase.GONE
        assert 0 <= own.node_hours(at_s) * HOUR_S <= at_s
        assert (own.leases[0].phase in (LeasePhase.WARMING, LeasePhase.MEMBER)) <= bool(own.hosts("8_0"))


def test_nodes_that_are_drained_are_told_with_the_reason_as_long_as_they_are() -> None:
    own = book(2)
    for index, node in enumerate(("a", "b")):
        own.admit(terms(index, node), 5.0)
    assert own.nodes() == {"8_0": {"a"}, "8_1": {"b"}}
    own.drain(["a", "b"], {"b": "a fan"})
    assert [lease.drained for lease in own.leases] == ["", "b (a fan)"]
    own.drain(["a"], {"a": ""})
    assert [lease.drained for lease in own.leases] == ["a", "b (a fan)"], "nothing was seen of the other"
    own.drain(["a", "b"], {})
    assert [lease.drained for lease in own.leases] == ["", ""]


def test_a_suspended_lease_is_told_once_also_when_it_is_given_up() -> None:
    own = book(2)
    own.admit(terms(0), 5.0)
    seen = {0: JobView(JobPhase.SUSPENDED, ("n",)), 1: JobView(JobPhase.HELD)}
    own.gone("n+8_0", "nothing was heard of it", 6.0)
    own.forget()
    own.look("8", seen, 7.0)
    own.look("8", seen, 8.0)
    assert own.orders() == (OutsideSuspend("8_0"),)
    own.look("8", {**seen, 0: JobView(JobPhase.RUNNING, ("n",))}, 9.0)
    own.look("8", seen, 10.0)
    assert own.orders() == (OutsideSuspend("8_0"),)


def test_a_lease_of_two_nodes_counts_with_those_that_have_called() -> None:
    own = LeaseTable()
    own.submitted("8", 1, Lease("", workers=4, nodes=2, length_s=3600.0), 0.0)

    def known() -> tuple[LeasePhase, int]:
        return own.leases[0].phase, own.leases[0].workers

    own.admit(terms(0, "a"), 10.0)
    own.train({"a+8_0"}, 20.0)
    assert known() == (LeasePhase.WARMING, 4), "the other may call yet"
    own.train({"a+8_0"}, 10.0 + PARTIAL_S)
    assert known() == (LeasePhase.MEMBER, 2), "and counts no longer when it does not"
    own.admit(terms(0, "b"), 200.0)
    own.train({"a+8_0"}, 201.0)
    assert known() == (LeasePhase.MEMBER, 4)
    own.gone("a+8_0", "its agent is lost", 300.0)
    own.train({"b+8_0"}, 301.0)
    assert known() == (LeasePhase.MEMBER, 2), "nor does one that was lost"
    assert own.leases[0].nodes == 2, "the job has both"


def test_a_lease_counts_in_full_until_the_agents_that_another_controller_knew_have_called() -> None:
    own = LeaseTable()
    own.restore([Lease("8_0", 4, LeasePhase.MEMBER, nodes=2)], 0.0, 0.0)
    own.expect("a+8_0", "8_0")
    own.expect("b+8_0", "8_0")
    own.admit(terms(0, "a"), 1.0)
    own.train({"a+8_0", "b+8_0"}, 2.0)
    assert own.leases[0].workers == 4


def test_a_lease_is_paid_for_from_the_start_of_its_job_on() -> None:
    own = book()
    own.told("8_0", LeasePhase.ASKED, 10.0)
    own.admit(terms(0), 136.0)
    own.look("8", {0: JobView(JobPhase.RUNNING, ("n",), ends_s=3700.0, began_s=100.0)}, 200.0)
    assert own.node_hours(1900.0) == 0.5
    own.gone("n+8_0", "its workers have left", 1900.0)
    assert own.node_hours(9999.0) == 0.5
