"""Who a process is, from its variables alone."""

from __future__ import annotations

import pytest

from farandole.cluster.detect import detect
from farandole.cluster.environment import (
    CONTROLLER,
    HOROVOD,
    KEY,
    LAUNCHED,
    OWN,
    Launched,
    Plain,
    Single,
    variables_for,
)
from farandole.errors import SettingsError
from farandole.topology import Topology

TOPOLOGY = Topology.of(2, ("a", "a", "b"), generation=1)
TOLD = variables_for(TOPOLOGY, "tcp://a:7000", "secret")


def test_a_launched_worker_reads_what_the_launcher_said() -> None:
    environment = detect(TOLD)
    assert isinstance(environment, Launched)
    assert (environment.place, environment.size, environment.host) == (2, 3, "b")
    assert (environment.controller, environment.key) == ("tcp://a:7000", "secret")
    assert not environment.starts_controller


def test_horovods_names_are_set_too_but_not_the_key() -> None:
    assert TOLD[HOROVOD.local_rank] == TOLD[OWN.local_rank] == "0"
    assert TOLD[HOROVOD.cross_size] == "2"
    assert [name for name, value in TOLD.items() if value == "secret"] == [KEY]


def test_of_plain_variables_rank_0_starts_the_controller() -> None:
    plain = {OWN.size: "2", CONTROLLER: "tcp://a:7000", KEY: "secret"}
    first, second = detect({**plain, OWN.rank: "0"}), detect({**plain, OWN.rank: "1"})
    assert isinstance(first, Plain)
    assert first.starts_controller
    assert not second.starts_controller
    assert (second.place, second.size, second.controller) == (1, 2, "tcp://a:7000")


def test_one_process_needs_nothing() -> None:
    assert isinstance(detect({}), Single)
    one = detect({OWN.rank: "0", OWN.size: "1"})
    assert (one.place, one.size, one.controller, one.key, one.starts_controller) == (0, 1, "", "", False)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({OWN.rank: "0"}, f"{OWN.size} must be a whole number, found ''.*farandole run"),
        ({OWN.rank: "x", OWN.size: "2"}, f"{OWN.rank} must be a whole number, found 'x'"),
        ({OWN.rank: "2", OWN.size: "2"}, "ranks count from 0 to 1"),
        ({OWN.rank: "0", OWN.size: "2"}, f"{CONTROLLER} is not set. Set it: .*tcp://HOST:PORT"),
        ({OWN.rank: "0", OWN.size: "2", CONTROLLER: "tcp://a:1"}, f"{KEY} is not set. Set it: .*token_hex"),
        ({OWN.rank: "0", OWN.size: "2", LAUNCHED: "0", CONTROLLER: "tcp://a:1"}, f"{KEY} is not set"),
    ],
)
def test_what_is_missing_is_named_with_what_to_type(variables: dict[str, str], says: str) -> None:
    environment = detect(variables)
    with pytest.raises(SettingsError, match=says):
        print(environment.place, environment.size, environment.controller, environment.key)
