"""Settings: one table, three sources, no silent surprises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import SettingsError
from farandole.settings import KNOBS, PREFIX, Settings


def test_argument_beats_file_beats_environment_beats_default() -> None:
    environment = {"FARANDOLE_STALL_WARNING_S": "1", "FARANDOLE_CACHE_CAPACITY": "1", "FARANDOLE_GRACE_S": "1"}
    settings = Settings.resolve({"stall_warning_s": 3}, {"stall_warning_s": 2, "cache_capacity": 2}, environment)
    assert (settings.stall_warning_s, settings.cache_capacity, settings.grace_s) == (3.0, 2, 1.0)
    assert settings.start_timeout_s == Settings().start_timeout_s


def test_an_argument_of_none_was_not_given() -> None:
    assert Settings.resolve({"engine": None}, environment={"FARANDOLE_ENGINE": "tcp"}).engine == "tcp"


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"environment": {"FARANDOLE_ENGIN": "shm"}}, "did you mean FARANDOLE_ENGINE?"),
        (
            {"environment": {"FARANDOLE_ENGINE": "warp"}},
            "engine \\(--engine, FARANDOLE_ENGINE\\) cannot be 'warp': the legal values are: auto, solo, shm",
        ),
        ({"environment": {"FARANDOLE_BLACKLIST_COOLDOWN_RANGE": "1 x"}}, "FARANDOLE_BLACKLIST_COOLDOWN_RANGE"),
        ({"file": {"zzz": 1}, "environment": {}}, "no setting of Farandole. The legal names are: across"),
        ({"file": {"engnie": "shm"}, "environment": {}}, "the settings file"),
        ({"arguments": {"grace_s": "soon"}, "environment": {}}, "grace_s"),
        ({"arguments": {"grace_s": -1}, "environment": {}}, ">= 0"),
    ],
)
def test_what_is_wrong_is_named(sources: dict[str, dict[str, str]], said: str) -> None:
    with pytest.raises(SettingsError, match=said.replace("?", r"\?")):
        Settings.resolve(**sources)


def test_identity_variables_are_no_knobs() -> None:
    assert Settings.resolve(environment={"FARANDOLE_RANK": "1", "FARANDOLE_KEY": "secret"}) == Settings()


def test_horovods_variables_are_understood() -> None:
    settings = Settings.resolve(
        environment={
            "HOROVOD_FUSION_THRESHOLD": "4096",
            "HOROVOD_LOG_LEVEL": "DEBUG",
            "HOROVOD_STALL_CHECK_DISABLE": "1",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "7",
        }
    )
    assert settings.fusion_threshold_bytes == 4096
    assert settings.log_level == "debug"
    assert settings.stall_check is False
    assert settings.stall_shutdown_s == 7.0


def test_no_flag_means_two_things() -> None:
    flags = [flag for knob in KNOBS.values() for flag in knob.flags + knob.off_flags]
    assert len(flags) == len(set(flags))


@given(
    st.builds(
        Settings,
        engine=st.sampled_from(["auto", "shm", "tcp"]),
        grace_s=st.floats(0, 1e6),
        cache_capacity=st.integers(0, 2**40),
        stall_check=st.booleans(),
        timeline=st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=20),
    )
)
def test_the_environment_carries_every_knob(settings: Settings) -> None:
    carried = settings.to_environment()
    assert all(name.startswith(PREFIX) for name in carried)
    assert Settings.resolve(environment=carried) == settings
