"""``farandole search --lease``: what would be submitted, and what is told of options that do not fit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farandole.cli import main
from farandole.errors import UsageError
from farandole.launch.batch import defaults, lease_submission
from farandole.launch.leases.script import LeaseJob, lease_script, parse_lease
from farandole.launch.sbatch.options import BatchOptions
from farandole.search.lease_pool import LeasePool
from farandole.settings import Settings

LEASE = ("--lease", "1x4@1h", "--max-np", "16")


@pytest.fixture(autouse=True)
def no_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The defaults and bounds of whoever runs the tests are none of them."""
    monkeypatch.setattr(defaults, "SITE", tmp_path / "site.toml")
    monkeypatch.setattr(lease_submission, "SITE_POLICY", tmp_path / "site_policy.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def search(*words: str) -> int:
    return main(["search", "tune.py", "space.toml", "--folder", "/scratch/me/lr", *words])


def test_a_lease_of_a_search_is_one_of_a_training_that_joins_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert search("--print", *LEASE, "--budget", "200nh", "-p", "gpu", "--sbatch=--constraint=a100") == 0
    shown = capsys.readouterr().out
    options = BatchOptions(partition="gpu", sbatch=["--constraint=a100"])
    path, python = str(Path(sys.executable).parent), (sys.executable, "-m", "farandole")
    launcher = ("farandole",) if (Path(path) / "farandole").exists() else python
    job = LeaseJob("lr", "/scratch/me/lr/pool", parse_lease("1x4@1h"), options, path, launcher)
    assert lease_script(job) in shown
    assert shown.endswith("array-leases = 8\nlease-lengths-s = [3600]\nbudget-node-hours = 200.0\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--budget", "2nh"), "--budget is of leases: write --lease 1x4@1h, too, or leave it out"),
        (("-p", "gpu"), "--partition is of leases"),
        (("--print",), "--print is of leases"),
        (("--lease", "1x4@1h"), "how many workers at most? write --max-np N, too"),
        (("--print", "--lease", "4@1h", "--max-np", "4"), "write NODESxWORKERS@TIME"),
        (("--print", "--lease", "1x4@1h", "--max-np", "3"), "less than one lease lends, 1x4@1h: write a larger one"),
        ((*LEASE, "--pool", "4"), "leave --hosts and --pool out"),
        ((*LEASE, "--hosts", "a:4"), "leave --hosts and --pool out"),
        (("--print", *LEASE, "--budget", "200"), "--budget '200' is no number of node-hours: write 200nh"),
        (("--print", *LEASE, "--policy", "/no/such.toml"), "--policy /no/such.toml: No such file or directory"),
    ],
)
def test_what_does_not_fit_is_told_with_what_to_type(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(*words) == 2
    assert told in capsys.readouterr().err


def test_a_policy_wider_than_the_sites_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site_policy.toml").write_text("most-leases = 4\n")
    (tmp_path / "own.toml").write_text("most-leases = 8\n")
    assert search("--print", *LEASE, "--policy", str(tmp_path / "own.toml")) == 2
    assert "most-leases = 8 is wider than most-leases = 4, the bound of this site" in capsys.readouterr().err


def test_a_pool_in_which_no_trial_has_room_is_refused(tmp_path: Path) -> None:
    pool = LeasePool("1x4@1h", max_np=7)
    with pytest.raises(UsageError, match="leases have 4 workers then, and a trial 6 at least"):
        pool.provider(tmp_path / "pool", tmp_path / "workers.txt", Settings(min_np=6, max_np=6))


def test_where_no_sbatch_is_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="search where Slurm's commands are"):
        LeasePool("1x4@1h", max_np=8).provider(tmp_path / "pool", tmp_path / "workers.txt", Settings())
    assert not (tmp_path / "pool").exists()
