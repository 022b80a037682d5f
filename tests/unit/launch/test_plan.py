"""Hosts and slots to ranks, and what each worker is started with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.control.entry import entry_command
from farandole.errors import UsageError
from farandole.launch.hosts.plan import Host, Job, assign_ranks, by_own_name, parse_hostfile, parse_hosts, workers
from farandole.settings import Settings

names = st.text("abcdefgh", min_size=1)


@given(st.lists(st.tuples(names, st.integers(1, 9)), min_size=1, max_size=5))
def test_both_ways_to_write_hosts_mean_the_same(hosts: list[tuple[str, int]]) -> None:
    expected = tuple(Host(name, slots) for name, slots in hosts)
    assert parse_hosts(",".join(f"{name}:{slots}" for name, slots in hosts)) == expected
    assert parse_hostfile("# ours\n\n" + "\n".join(f"{name} slots={slots} # new" for name, slots in hosts)) == expected


def test_a_host_without_a_number_has_one_slot() -> None:
    assert parse_hosts("a,b:2") == (Host("a", 1), Host("b", 2))
    assert parse_hostfile("a\nb slots=2") == (Host("a", 1), Host("b", 2))


@pytest.mark.parametrize("text", ["", "a:", "a:0", "a:x", ":4", "a:1,,b:1", "a:-1"])
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="-H localhost:4"):
        parse_hosts(text)


@pytest.mark.parametrize("text", ["", "# nothing", "a slots=", "a slots=0", "a max_slots=2", "a slots=1 slots=2"])
def test_what_is_no_host_file_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="NAME slots=N"):
        parse_hostfile(text)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 50))
def test_ranks_fill_hosts_in_order_and_never_beyond_their_slots(slots: list[int], np: int) -> None:
    hosts = [Host(f"host{n}", count) for n, count in enumerate(slots)]
    if np > sum(slots):
        with pytest.raises(UsageError, match=f"-np {np}"):
            assign_ranks(np, hosts)
        return
    placed = assign_ranks(np, hosts)
    assert len(placed) == np
    assert list(placed) == sorted(placed)
    assert all(placed.count(host.name) <= host.slots for host in hosts)


def test_slots_default_to_np_and_np_to_the_slots() -> None:
    assert assign_ranks(3, ()) == ("localhost",) * 3
    assert assign_ranks(None, (Host("a", 2), Host("b", 1))) == ("a", "a", "b")


@pytest.mark.parametrize("np", [0, -1, None])
def test_no_workers_are_refused(np: int | None) -> None:
    with pytest.raises(UsageError, match="-np"):
        assign_ranks(np, ())


def test_this_host_has_several_names_and_entries_of_one_host_are_added_up() -> None:
    own = {"box.lan", "10.0.0.1", "fd77::1"}.__contains__
    hosts = parse_hosts("localhost:1,other:2,box:1,box.lan:1,10.0.0.1:1,[fd77::1]:1,box.elsewhere:1,10.0.0.2:1,other:3")
    assert by_own_name(hosts, "box", own) == (
        Host("box", 5), Host("other", 5), Host("box.elsewhere", 1), Host("10.0.0.2", 1)
    )  # fmt: skip


def test_names_that_cannot_be_ours_are_not_looked_up() -> None:
    def refuse(name: str) -> bool:
        raise AssertionError(name)

    assert len(by_own_name(parse_hosts("localhost,LOCALHOST,box,Box,other,other.lan"), "box", refuse)) == 3


def test_short_forms_and_addresses() -> None:
    assert parse_hosts("n[01-02]:4,[fd77::1]:2,[::1],10.0.0.1:3") == (
        Host("n01", 4), Host("n02", 4), Host("fd77::1", 2), Host("::1", 1), Host("10.0.0.1", 3)
    )  # fmt: skip
    assert parse_hostfile("n[1,3] slots=2\nfd77::1 slots=1\n[fd77::2]") == (
        Host("n1", 2), Host("n3", 2), Host("fd77::1", 1), Host("fd77::2", 1)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"), [("fd77::1:2", r"brackets: \[fd77::1:2\]:4"), ("-oProxyCommand=x:1", "no name of a host")]
)
def test_what_would_be_misunderstood_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_hosts(text)


def test_a_worker_is_told_who_it_is_and_what_was_asked() -> None:
    job = Job(["true"], ("box",) * 2, Settings(engine="tcp"), python_path=("/a", "/b"), environment={"MINE": "1"})
    specs = workers(job, "ab", {"PYTHONPATH": "/c"})
    assert [spec.worker_id for spec in specs] == [0, 1]
    told = specs[1].environment
    assert (told["FARANDOLE_RANK"], told["HOROVOD_LOCAL_SIZE"], told["FARANDOLE_ENGINE"]) == ("1", "2", "tcp")
    assert (told["FARANDOLE_KEY"], told["MINE"]) == ("ab", "1")
    assert (told["PYTHONPATH"], told["PYTHONUNBUFFERED"]) == ("/a:/b:/c", "1")
    assert not any("KEY" in name for name in told if name.startswith("HOROVOD"))


def test_an_argument_beats_an_inherited_variable_even_with_the_default() -> None:
    told = workers(Job(["true"], ("box",)), "", {"FARANDOLE_ENGINE": "tcp", "HOROVOD_CACHE_CAPACITY": "7"})[0]
    assert told.environment["FARANDOLE_ENGINE"] == "auto"
    assert told.environment["FARANDOLE_CACHE_CAPACITY"] == "1024"


def test_buffering_asked_for_by_the_user_is_kept() -> None:
    assert "PYTHONUNBUFFERED" not in workers(Job(["true"], ("a",)), "", {"PYTHONUNBUFFERED": ""})[0].environment


def test_an_entry_does_not_look_into_the_current_folder() -> None:
    _, option, text = entry_command("farandole.launch.agents.agent")
    assert option == "-c"
    assert "sys.path[0] = '/" in text
