"""What every test gets: proof that it leaked nothing, and ``launch``, which runs a job through the real launcher."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

import hypothesis
import pytest

from farandole.testing.leaks import ResourceSnapshot, no_leaks
from tests.frameworks import loaded_here, without_compiler
from workbench.cluster import Cluster, SlurmCluster, UnavailableError

sys.dont_write_bytecode = False
"""Each process of ``make test`` reads all tests, and rewrites them unless the last run has kept them."""

RAY_IS_LATE = "The current node timed out during startup"
"""What Ray says where a node of its own has not started within 30 s, as on a machine that has three tests to run."""

hypothesis.settings.register_profile("ci", derandomize=True, max_examples=40, deadline=None, database=None)
hypothesis.settings.register_profile("dev", max_examples=40, deadline=None)
hypothesis.settings.register_profile("long", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


LONG = (
    "keras/test_keras.py", "test_docs.py", "slurm/test_leases.py", "workbench/test_differential.py",
    "elastic/test_faults.py", "cluster/test_elastic_hosts.py", "tensorflow/test_tensorflow.py",
    "torch/test_on_ranks.py", "launch/test_leases.py", "jax/test_on_ranks.py", "bindings/test_contract.py",
    "cluster/test_starters_many_hosts.py", "compat/test_scripts.py", "engines/test_contract.py",
    "cluster/test_faults.py", "compat/test_starts.py", "elastic/test_soak.py", "cluster/test_ssh.py",
    "workbench/test_frameworks.py", "launch/test_elastic_jobs.py", "notebook/test_engines_on_hosts.py",
    "clusters/test_clusters.py", "notebook/test_widget.py", "cluster/test_scheduler.py", "cluster/test_starters.py",
    "launch/test_adoption.py", "checkpoint/test_sharded.py", "engines/test_tcp_between_hosts.py",
)  # fmt: skip
"""Files that take long, the longest first, and every third one that mostly waits: both cores have work then."""

SLOW = (
    "attacks/test_loaders.py::test_each_row_counts_once[fork-new]",
    "attacks/test_twins.py::test_twins_share_nothing_and_one_outlives_the_other[torchrun]",
    "bindings/test_elastic.py::test_a_worker_is_killed_another_one_comes_and_nobody_can_tell[tensorflow]",
    "checkpoint/test_sharded.py::test_two_jobs_that_write_to_one_folder_leave_each_other_alone",
    "cluster/test_elastic_hosts.py::test_a_job_that_has_to_end_goes_on_from_its_checkpoint_when_slurm_has_requeued_it[it",
    "cluster/test_faults.py::test_a_host_that_gets_slow_is_not_lost[collective]",
    "cluster/test_scheduler.py::test_slurm_keeps_the_contract[a_scheduler_that_is_away_says_nothing_of_jobs]",
    "cluster/test_starters.py::test_mpi_places_its_ranks_and_any_part_of_them[mpich]",
    "compat/test_talks_2018.py::test_a_script_of_2018_learns",
    "elastic/test_faults.py::test_a_training_that_counts_in_its_weights_applies_each_sample_once[jax-torch]",
    "elastic/test_faults.py::test_in_slurm",
    "elastic/test_faults.py::test_on_one_host",
    "elastic/test_faults.py::test_on_two_hosts",
    "elastic/test_soak.py::test_random_faults_change_nothing",
    "elastic/test_soak.py::test_workers_re_form_again_and_again",
    "elastic/test_told.py::test_at_every_moment_it_ends_and_leaves_nothing_that_something_waits_for[SIGINT-each-1",
    "elastic/test_told.py::test_at_every_moment_it_ends_and_leaves_nothing_that_something_waits_for[SIGTERM-each-1",
    "engines/test_contract.py::test_engine[hybrid-aabb-",
    "engines/test_contract.py::test_engine[shm-4-",
    "engines/test_contract.py::test_engine[tcp-4-",
    "engines/test_mpi.py::test_engine[openmpi-4-",
    "engines/test_tcp_between_hosts.py::test_engine[ipv6-",
    "jax/test_on_ranks.py::test_the_example_learns",
    "keras/test_keras.py::test_a_worker_is_killed_another_one_comes_and_nobody_can_tell[torch]",
    "keras/test_keras.py::test_everything_on_ranks[jax-2]",
    "keras/test_keras.py::test_everything_on_ranks[torch-3]",
    "launch/leases/test_properties.py::test_noisy_advice_changes_the_size_rarely",
    "launch/test_adoption.py::test_workers_are_not_hung_whose_agents_have_not_missed_their_lead_yet",
    "launch/test_leases.py::test_a_run_that_cannot_be_reached_is_told",
    "notebook/test_engines_on_hosts.py::test_engines_come_over_ssh_and_one_is_replaced_where_it_was",
    "notebook/test_px_training.py::test_cells_train_to_the_same_bits_as_a_job",
    "notebook/test_widget.py::test_a_saved_notebook_keeps_a_picture_of_the_end_and_no_key",
    "notebook/test_widget.py::test_engines_are_watched_and_their_cell_is_stopped_in_jupyterlab",
    "runtime/test_failures.py::test_who_never_comes_is_shown_with_its_stack_and_then_everybody_raises[computing]",
    "search/test_notebook.py::test_the_notebook_finds_a_good_network",
    "slurm/test_adoption.py::test_a_lead_that_is_queued_again_goes_on_with_the_workers_of_its_leases",
    "slurm/test_leases.py::test_a_lease_leaves_a_node_that_is_drained_and_outlives_not_its_suspension",
    "slurm/test_leases.py::test_leases_leave_with_a_lead_that_is_told_to_end_and_come_again_when_it_is_queued_again",
    "slurm/test_leases.py::test_slurm_is_away_and_the_training_goes_on",
    "slurm/test_leases.py::test_the_lead_loses_power_and_is_queued_again_with_its_held_leases",
    "tensorflow/test_tensorflow.py::test_gradients_are_horovods_under_its_name_and_derivatives_under_ours",
    "tensorflow/test_tensorflow.py::test_optimizers_of_keras_are_distributed_in_loops_and_in_fit[horovod.tensorflow]",
    "tensorflow/test_tensorflow.py::test_the_example_learns",
    "tensorflow/test_tensorflow.py::test_the_slow_way_is_right_too",
    "test_docs.py::test_commands_of_a_page_run[docs/how-to/run-from-python.md]",
    "test_docs.py::test_commands_of_a_page_run[docs/how-to/run-horovod-scripts.md]",
    "test_docs.py::test_commands_of_a_page_run[docs/how-to/same-bits-at-any-size.md]",
    "test_docs.py::test_commands_of_a_page_run[docs/how-to/start-without-the-launcher.md]",
    "test_docs.py::test_commands_of_a_page_run[docs/how-to/train-on-a-ray-dask-or-spark-cluster.md]",
    "test_examples.py::test_the_demo_reaches_the_same_accuracy_on_one_worker_and_several",
    "testing/test_thread_engine.py::test_passes_the_contract[3]",
    "torch/test_noise_scale.py::test_the_estimate_of_a_job_is_within_ten_percent_of_the_truth",
    "torch/test_on_ranks.py::test_on_ranks[3-mpi",
    "torch/test_on_ranks.py::test_on_ranks[3-overlapped",
    "torch/test_on_ranks.py::test_on_ranks[4-on-2-uneven-hosts-and-a-tree-",
    "workbench/test_differential.py::test_programs_of_a_fixed_seed_do_what_the_oracle_does[1,2,3",
    "workbench/test_frameworks.py::test_defects_planted_in_the_package_are_found_and_nothing_else[jax]",
    "workbench/test_frameworks.py::test_programs_of_a_fixed_seed_do_what_the_oracle_does[keras]",
)
"""Tests, by how their names begin, that ``make test`` leaves to ``make slow``; CI runs both.

Where tests share a job, the row has all of them: the first that is run waits for the whole.
"""


@pytest.hookimpl(tryfirst=True)  # before pytest takes out what ``-m`` does not ask for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take long: the process that got one last would be alone with it at the end."""
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(LONG)))
    unmet = _mark_slow(items)
    if unmet and config.args == config.getini("testpaths") and "LARGE" not in os.environ:
        raise pytest.UsageError(f"tests/conftest.py has slow tests that are not there: {unmet}")


def _mark_slow(items: list[pytest.Item]) -> list[str]:
    """Mark the tests of ``SLOW``; its rows that no test has, of files that were not skipped for want of a package."""
    files = {item.nodeid.partition("::")[0] for item in items}
    unmet = {name for name in SLOW if f"tests/{name}".partition("::")[0] in files}
    for item in items:
        found = {name for name in SLOW if item.nodeid.startswith(f"tests/{name}")}
        if found:
            item.add_marker(pytest.mark.slow)
            unmet -= found
    return sorted(unmet)


_Made = TypeVar("_Made", Cluster, SlurmCluster)


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """Fail a test that leaves threads, processes, descriptors, shared memory, variables or a directory behind."""
    variables, cwd = _variables(), os.getcwd()
    before = ResourceSnapshot.take()
    with no_leaks(allowed=_not_ours):
        yield
        if ResourceSnapshot.take().since(
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


@final
@dataclass(frozen=True)
class Finished:
    """A job that ended by itself."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    def ok(self) -> Finished:
        """Itself, or a failure that shows what the job printed."""
        assert self.code == 0, f"the job exited with {self.code}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        return self

    def lines(self) -> list[str]:
        """Standard output in sorted lines, without the ``[rank]<stream>:`` prefixes of workers."""
        return sorted(line.partition(">:")[2].strip() if ">:" in line else line for line in self.stdout.splitlines())


@final
@dataclass(frozen=True)
class Launch:
    """The type of the fixture ``launch``; scripts run in ``folder``."""

    folder: Path

    def __call__(
        self,
        np: int,
        script: str | Path,
        *,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        deadline_s: float = 150.0,
        python: str = sys.executable,
    ) -> Finished:
        """Run a script (its text, or its path) on ``np`` ranks through ``farandole run`` and wait for the end.

        ``python``: the interpreter of another environment that has Farandole.
        """
        if isinstance(script, str):
            text, script = script, self.folder / "script.py"
            script.write_text(textwrap.dedent(text))
        command = [python, "-m", "farandole", "run", "-np", str(np), *options]
        command += [python, str(script), *arguments]
        return run_to_end(command, self.folder, deadline_s, environment)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """``launch(2, "import farandole.torch as hvd; ...").ok().lines()``."""
    return Launch(tmp_path)


@pytest.fixture(scope="session")
def mxnet_python() -> str:
    """Interpreter of the environment that ``make mxnet`` sets up, for ``launch(..., python=mxnet_python)``; or skip."""
    root = Path(__file__).parent.parent
    environment = root / os.environ.get("MXNET_VENV", ".venv-mxnet")
    if not (stamp := environment / ".farandole-installed").exists():
        pytest.skip("MXNet needs an environment of its own, and there is none here: make mxnet")
    if stamp.stat().st_mtime < max(source.stat().st_mtime for source in (root / "native").glob("*.?pp")):
        pytest.skip("the environment of MXNet has an older native core than this: make mxnet")
    return str(environment / "bin" / "python")


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """``head``, ``node1``, ``node2`` for the tests of a module, which leave them as they were.

    Four nodes: ``pytestmark = pytest.mark.parametrize("cluster", [4], indirect=True)``.
    """
    with _or_skip(Cluster, getattr(request, "param", 2)) as made:
        yield made


@pytest.fixture(scope="module")
def slurm(request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """The same under Slurm: ``slurm.run(["srun", ...])``, ``slurm.cluster``."""
    with _or_skip(SlurmCluster, getattr(request, "param", 2)) as made:
        yield made


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """``make_cluster(2)``: hosts for one test, which may do to them what it likes."""
    with contextlib.ExitStack() as stack:
        yield lambda nodes, **options: stack.enter_context(_or_skip(Cluster, nodes, **options))


@pytest.fixture
def make_slurm() -> Iterator[Callable[..., SlurmCluster]]:
    """The same under Slurm."""
    with contextlib.ExitStack() as stack:
        yield lambda nodes, **options: stack.enter_context(_or_skip(SlurmCluster, nodes, **options))


def _or_skip(kind: Callable[..., _Made], nodes: int, **options: Any) -> _Made:
    try:
        return kind(nodes, **options)
    except UnavailableError as error:
        pytest.skip(str(error))


def run_to_end(
    command: Sequence[str], cwd: Path, deadline_s: float, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run ``command`` in a session of its own; at the deadline end it and fail with what it had printed."""
    begin = time.monotonic()
    with (cwd / "stdout.txt").open("w+") as out, (cwd / "stderr.txt").open("w+") as err:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **without_compiler(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        out.seek(0)
        err.seek(0)
        stdout, stderr = out.read(), err.read()
    if code is None:
        pytest.fail(f"not done after {deadline_s} s: {' '.join(command)}\n{stdout}\n{stderr}")
    return Finished(code, stdout, stderr, time.monotonic() - begin)
