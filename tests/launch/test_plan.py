"""Hosts and slots to ranks, and what each worker is started with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import UsageError
from farandole.launch.plan import Host, Job, entry_command, on_this_host, parse_hostfile, parse_hosts, place, workers
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
            place(np, hosts)
        return
    placed = place(np, hosts)
    assert len(placed) == np
    assert list(placed) == sorted(placed)
    assert all(placed.count(host.name) <= host.slots for host in hosts)


def test_slots_default_to_np_and_np_to_the_slots() -> None:
    assert place(3, ()) == ("localhost",) * 3
    assert place(None, (Host("a", 2), Host("b", 1))) == ("a", "a", "b")


@pytest.mark.parametrize("np", [0, -1, None])
def test_no_workers_are_refused(np: int | None) -> None:
    with pytest.raises(UsageError, match="-np"):
        place(np, ())


def test_this_host_has_several_names_and_no_other_is_taken() -> None:
    assert on_this_host(("localhost", "box", "box.lan", "127.0.0.1"), "box.lan") == ("box.lan",) * 4
    with pytest.raises(UsageError, match="other is not this host"):
        on_this_host(("localhost", "other"), "box")


def test_a_worker_is_told_who_it_is_and_what_was_asked() -> None:
    job = Job(["true"], ("box",) * 2, Settings(engine="gloo"), python_path=("/a", "/b"), environment={"MINE": "1"})
    specs = workers(job, "tcp://127.0.0.1:7", "ab", {"PYTHONPATH": "/c"})
    assert [spec.place for spec in specs] == [0, 1]
    told = specs[1].environment
    assert (told["FARANDOLE_RANK"], told["HOROVOD_LOCAL_SIZE"], told["FARANDOLE_ENGINE"]) == ("1", "2", "gloo")
    assert (told["FARANDOLE_CONTROLLER"], told["FARANDOLE_KEY"], told["MINE"]) == ("tcp://127.0.0.1:7", "ab", "1")
    assert (told["PYTHONPATH"], told["PYTHONUNBUFFERED"]) == ("/a:/b:/c", "1")
    assert not any("KEY" in name for name in told if name.startswith("HOROVOD"))


def test_an_argument_beats_an_inherited_variable_even_with_the_default() -> None:
    told = workers(Job(["true"], ("box",)), "", "", {"FARANDOLE_ENGINE": "gloo", "HOROVOD_CACHE_CAPACITY": "7"})[0]
    assert told.environment["FARANDOLE_ENGINE"] == "auto"
    assert told.environment["FARANDOLE_CACHE_CAPACITY"] == "1024"


def test_buffering_asked_for_by_the_user_is_kept() -> None:
    assert "PYTHONUNBUFFERED" not in workers(Job(["true"], ("a",)), "", "", {"PYTHONUNBUFFERED": ""})[0].environment


def test_an_entry_does_not_look_into_the_current_folder() -> None:
    _, option, text = entry_command("farandole.launch.agent")
    assert option == "-c"
    assert "sys.path[0] = '/" in text
