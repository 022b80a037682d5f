"""Common to all tests: the rules of its tier, proof that it leaked nothing, and ``launch``, which runs a real job."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from farandole.testing.leaks import ResourceSnapshot, no_leaks
from tests.support import durations, patience, tiers
from tests.support.frameworks import loaded_here
from tests.support.launching import Launch
from tests.support.tiers import Tier

sys.dont_write_bytecode = False
"""Each process of ``make test`` reads all tests, and rewrites them unless the last run has kept them."""

LEFT = pytest.StashKey[Counter[Path]]()
"""How many tests of each file are still to be run, where whole files are."""

hypothesis.settings.register_profile("ci", derandomize=True, max_examples=40, deadline=None, database=None)
hypothesis.settings.register_profile("dev", max_examples=40, deadline=None)
hypothesis.settings.register_profile("long", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_configure(config: pytest.Config) -> None:
    """Measure the machine before the processes of pytest-xdist do it at the same time."""
    patience.factor()
    durations.record(config)


def pytest_report_header() -> str:
    """One line about this machine."""
    return f"patience: limits are {patience.PATIENCE_S:.0f} s ({patience.factor():.1f} times those of an idle machine)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--record-durations``."""
    parser.addoption("--record-durations", action="store_true", help=f"write {durations.FILE.name}, see make durations")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take long: the process that got one last would be alone with it at the end."""
    is_whole = not any("::" in argument for argument in config.args) and not config.getoption("lf", default=False)
    config.stash[LEFT] = Counter(item.path for item in items if is_whole)
    durations.longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Refuse a file that lies in no tier, or imports what its tier rules out."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    try:
        tier = tiers.tier_of(collector.path)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    tiers.enter(tier)
    try:
        return (yield)
    finally:
        broken = tiers.leave()
        tiers.needs_its_tier()  # what is done at import says nothing of the tests
        if broken:
            raise pytest.UsageError("\n".join(broken))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Hold a test and its fixtures to the rules of its tier, until ``pytest_runtest_teardown``."""
    tiers.enter(tiers.tier_of(item.path))
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test that broke a rule, also where something caught the error, and a whole file that needs no tier."""
    try:
        return (yield)
    finally:
        broken = tiers.leave()
        left = item.config.stash[LEFT]
        left[item.path] -= 1
        if left[item.path] == 0 and tiers.tier_of(item.path) is Tier.JOBS and not tiers.needs_its_tier():
            lacks = "starts a process, opens a socket or waits"
            broken.append(f"nothing in {item.path.name} {lacks}: it belongs in tests/unit")
        if broken:
            pytest.fail("\n".join(broken), pytrace=False)


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """Fail a test that leaves threads, processes, descriptors, shared memory, variables or a directory behind."""
    variables, cwd = _variables(), os.getcwd()
    before = ResourceSnapshot.of_this_process()
    with no_leaks(allowed=_not_ours):
        yield
        if ResourceSnapshot.of_this_process().since(
            before
        ):  # perhaps held by garbage only; collecting after every test would cost a minute
            gc.collect()
    changed = sorted({name for name, _ in variables ^ _variables()})
    assert not changed, f"the test set, changed or removed environment variables: {changed}"
    assert not loaded_here(), f"a framework belongs in a process of its own: {loaded_here()}"
    assert os.getcwd() == cwd, f"the test left the working directory at {os.getcwd()}"


def _variables() -> set[tuple[str, str]]:
    return {item for item in os.environ.items() if item[0] != "PYTEST_CURRENT_TEST"}


def _not_ours(line: str) -> bool:
    """Whether a leak is none of the test's: pytest's streams after Ctrl-C, a library's thread pool or open fonts."""
    what, _, name = line.partition(": ")
    if what == "descriptors":
        number, _, target = name.partition(" -> ")
        return number in {"0", "1", "2"} or target.startswith(f"{sys.prefix}/lib")
    if what != "threads" or int(name) in {t.native_id for t in threading.enumerate()}:
        return False
    try:
        with open(f"/proc/self/task/{name}/comm") as file:
            return not file.read().startswith("ZMQ")
    except OSError:
        return True


@pytest.fixture
def launch(tmp_path: Path, request: pytest.FixtureRequest) -> Launch:
    """``launch(2, "import farandole.torch as hvd; ...").ok().lines()``."""
    return Launch(tmp_path, tiers.tier_of(request.path))
