"""The package ``horovod``: the names that scripts touch, and honest words about those that are missing."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import farandole
from tests.support.runtime.interruptions import at_every_call, within_deadline

NAMES = {
    "horovod": "run __version__",
    "horovod.torch": "init shutdown is_initialized size rank local_size local_rank cross_size cross_rank Average Sum"
    " Adasum Min Max Product mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built"
    " nccl_built ddl_built ccl_built cuda_built rocm_built start_timeline stop_timeline ProcessSet"
    " global_process_set add_process_set remove_process_set HorovodInternalError allreduce"
    " allreduce_async allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async"
    " grouped_allreduce_ grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async"
    " grouped_allgather grouped_allgather_async broadcast broadcast_async broadcast_ broadcast_async_"
    " alltoall alltoall_async reducescatter reducescatter_async grouped_reducescatter"
    " grouped_reducescatter_async join barrier poll synchronize Compression DistributedOptimizer"
    " SyncBatchNorm broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object",
    "horovod.torch.mpi_ops": "allreduce_async_ synchronize poll rank size Average is_homogeneous HorovodAllreduce",
    "horovod.torch.compression": "Compression Compressor NoneCompressor FP16Compressor",
    "horovod.torch.functions": "broadcast_object broadcast_parameters broadcast_optimizer_state allgather_object",
    "horovod.torch.optimizer": "DistributedOptimizer _DistributedOptimizer _DistributedAdasumOptimizer",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
    "horovod.torch.elastic": "run TorchState ElasticSampler",
    "horovod.torch.elastic.sampler": "ElasticSampler",
    "horovod.torch.elastic.state": "TorchState StateHandler ModelStateHandler OptimizerStateHandler SamplerStateHandler"
    " get_handler_registry set_handler_registry",
    "horovod.common.elastic": "State ObjectState run_fn",
    "horovod.common.basics": "HorovodBasics",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError",
    "horovod.common.process_sets": "ProcessSet global_process_set add_process_set remove_process_set",
    "horovod.common.util": "env gloo_built mpi_built nccl_built extension_available check_extension gpu_available"
    " split_list is_version_greater_equal_than _cache num_rank_is_power_2 is_iterable ddl_built ccl_built",
    "horovod.keras": "init size rank DistributedOptimizer PartialDistributedOptimizer broadcast_global_variables"
    " allreduce allgather broadcast reducescatter load_model Average Sum Compression callbacks elastic",
    "horovod.keras.callbacks": "BroadcastGlobalVariablesCallback MetricAverageCallback LearningRateScheduleCallback"
    " LearningRateWarmupCallback BestModelCheckpoint",
    "horovod.keras.elastic": "KerasState CommitStateCallback UpdateBatchStateCallback UpdateEpochStateCallback run",
    "horovod.data": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod.data.data_loader_base": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod.runner": "run",
    "horovod.runner.common.util.env": "get_env_rank_and_size",
    "horovod.runner.util.threads": "in_thread on_event execute_function_multithreaded",
}


def test_it_can_be_imported_nowhere_else() -> None:
    found = importlib.util.find_spec("horovod")
    assert found is None or "farandole" not in str(found.origin)


@pytest.mark.parametrize("module", NAMES)
def test_names(module: str, horovod_site: str) -> None:
    if module.startswith("horovod.torch"):
        pytest.importorskip("torch")
    if module.startswith("horovod.keras"):
        pytest.skip("Keras keeps threads and files; tests/keras asks in processes of their own")
    found = importlib.import_module(module)
    assert [name for name in NAMES[module].split() if not hasattr(found, name)] == []


def test_both_names_are_one_library_but_for_horovods_numbers(horovod_site: str) -> None:
    pytest.importorskip("torch")
    import farandole.torch

    horovod: Any = importlib.import_module("horovod.torch")
    assert horovod.allreduce is farandole.torch.allreduce
    assert horovod.mpi_ops is importlib.import_module("horovod.torch.mpi_ops")
    assert horovod.mpi_ops.allreduce is horovod.allreduce
    differs = {name for name in farandole.torch.__all__ if getattr(horovod, name) is not getattr(farandole.torch, name)}
    gradients = {"allgather", "grouped_allgather", "broadcast", "reducescatter", "grouped_reducescatter"}
    assert differs == gradients | {"DistributedOptimizer", "broadcast_optimizer_state"}
    for name in differs:
        ours, theirs = (inspect.signature(getattr(module, name)) for module in (farandole.torch, horovod))
        assert ours.parameters == theirs.parameters, name
    assert horovod.elastic is importlib.import_module("horovod.torch.elastic") is farandole.torch.elastic
    assert horovod.elastic.state is importlib.import_module("horovod.torch.elastic.state")
    exceptions: Any = importlib.import_module("horovod.common.exceptions")
    assert exceptions.HorovodInternalError is farandole.HorovodInternalError is horovod.HorovodInternalError
    assert importlib.import_module("horovod").__version__ == "0.28.1"


@pytest.mark.parametrize(
    ("module", "comes"),
    [
        ("horovod._keras", "it comes in a later release"),
        ("horovod.runner.common.util.settings", "it starts jobs in Horovod's way"),
        ("horovod.runner.elastic.discovery", "it starts jobs in Horovod's way"),
        ("horovod.runner.util.network", "it starts jobs in Horovod's way"),
    ],
)
def test_what_is_missing_says_so(module: str, comes: str, horovod_site: str) -> None:
    with pytest.raises(
        ModuleNotFoundError,
        match=rf"is not in Farandole .* has horovod.torch, .tensorflow, .keras and .mxnet: {comes}.*--horovod",
    ):
        importlib.import_module(module)
    importlib.import_module("horovod")
    assert [type(finder).__name__ for finder in sys.meta_path].count("AbsentModules") == 1
    assert importlib.util.find_spec("horovod.unheard_of") is None


def test_estimators_say_so_without_spark(horovod_site: str) -> None:
    explain = importlib.import_module("horovod._absent").explain
    assert "it is not planned" in explain("horovod.spark.torch")
    assert "it is not planned" in explain("horovod.spark.common.store")
    assert "it is not planned" in explain("horovod.ray.elastic")
    assert [explain(name) for name in ("horovod.spark", "horovod.ray", "horovod.ray.runner")] == ["", "", ""]


def test_threads(horovod_site: str) -> None:
    threads: Any = importlib.import_module("horovod.runner.util.threads")
    done: list[int] = []
    threads.in_thread(done.append, (1,), name="adds").join()
    event, stop = threading.Event(), threading.Event()
    waiting = threads.on_event(event, done.append, (2,))
    event.set()
    waiting.join()
    assert done == [1, 2]
    stop.set()
    threads.on_event(threading.Event(), done.append, (3,), stop, check_stop_interval_s=0.01, daemon=False).join()
    threads.in_thread(done.index, (9,), silent=True).join()
    assert done == [1, 2]
    arguments = [[i, 2] for i in range(9)]
    assert threads.execute_function_multithreaded(pow, arguments, True, 3) == {i: i * i for i in range(9)}
    assert arguments[0] == [0, 2]
    with pytest.raises(RuntimeError, match=r"1 of 2 calls .* raised; the first: ZeroDivisionError"):
        threads.execute_function_multithreaded(pow, [[1, -1], [0, -1]])
    with pytest.raises(ValueError, match="give a tuple"):
        threads.in_thread(print, ["x"])
    for nonsense in (0, -1):
        with pytest.raises(ValueError, match=f"max_concurrent_executions={nonsense}: give a number of threads"):
            threads.execute_function_multithreaded(pow, arguments, True, nonsense)
        with pytest.raises(ValueError, match=f"check_stop_interval_s={nonsense}: give a number of seconds above 0"):
            threads.on_event(event, done.append, (4,), stop, check_stop_interval_s=nonsense)


def test_util(horovod_site: str) -> None:
    util: Any = importlib.import_module("horovod.common.util")
    os.environ.pop("FARANDOLE_TEST_NEW", None)
    with util.env(HOME="/nowhere", FARANDOLE_TEST_NEW="1", PATH=None):
        assert os.environ["HOME"] == "/nowhere"
        assert os.environ["FARANDOLE_TEST_NEW"] == "1"
        assert "PATH" not in os.environ
    assert os.environ["HOME"] != "/nowhere"
    assert "FARANDOLE_TEST_NEW" not in os.environ
    assert util.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert util.is_version_greater_equal_than("2.13.0+cpu", "2.2.0")
    assert not util.is_version_greater_equal_than("1.9.1", "1.10.0")
    with pytest.raises(ValueError, match="three numbers"):
        util.is_version_greater_equal_than("2.13", "2.2.0")
    calls: list[int] = []
    cached = util._cache(calls.append)
    cached(1), cached(1), cached(2)
    assert calls == [1, 2]
    assert not util.extension_available("keras")
    with pytest.raises(
        ImportError, match=r"horovod.keras cannot be used: this release has torch, tensorflow, mxnet only"
    ):
        util.check_extension("horovod.keras", "HOROVOD_WITH_KERAS", __file__, "mpi_lib")


def test_data_loaders_load_ahead_and_end(horovod_site: str) -> None:
    data: Any = importlib.import_module("horovod.data")

    class Numbers(data.BaseDataLoader):  # type: ignore[misc]
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        def _iterate(self) -> Iterator[int]:
            yield from range(self.count)

        def _process_batch(self, batch: int) -> int:
            return 10 * batch

    ahead: Any = type("Ahead", (data.AsyncDataLoaderMixin, Numbers), {})

    expected = [0, 10, 20, 30, 40]
    for size in (0, 1, 64):
        loader: Any = ahead(async_loader_queue_size=size, count=5)
        assert [list(loader), list(loader)] == [expected, expected]
        loader.close_async_loader()
        loader.close_async_loader()
        assert list(loader) == expected
        loader.close_async_loader()
    assert [thread.name for thread in threading.enumerate() if "loader" in thread.name] == []


def test_what_a_loader_raises_reaches_the_consumer(horovod_site: str) -> None:
    data: Any = importlib.import_module("horovod.data")

    class Broken(data.AsyncDataLoaderMixin, data.BaseDataLoader):  # type: ignore[misc]
        def _iterate(self) -> Iterator[int]:
            yield 1
            raise OSError("the disk is gone")

    loader = iter(Broken(2))
    assert next(loader) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(loader)


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_loader_that_ends_its_thread_ends_the_consumer(end: type[BaseException], horovod_site: str) -> None:
    data: Any = importlib.import_module("horovod.data")

    class Ending(data.AsyncDataLoaderMixin, data.BaseDataLoader):  # type: ignore[misc]
        def _iterate(self) -> Iterator[int]:
            yield 1
            raise end("as the test wants")

    loader = Ending(2)
    for _ in range(2):  # it can be iterated again
        batches = iter(loader)
        assert next(batches) == 1
        with pytest.raises(end, match="as the test wants"):
            next(batches)


def test_a_loader_can_be_closed_again_where_that_was_interrupted(horovod_site: str) -> None:
    data: Any = importlib.import_module("horovod.data")

    class Numbers(data.AsyncDataLoaderMixin, data.BaseDataLoader):  # type: ignore[misc]
        def _iterate(self) -> Iterator[int]:
            yield from range(5)

    def stop() -> None:
        raise KeyboardInterrupt

    def close() -> None:
        for interruption in at_every_call(stop, ("data_loader_base.py",)):
            loader = Numbers(2)
            assert next(iter(loader)) == 0
            with contextlib.suppress(KeyboardInterrupt):
                interruption.run(loader.close_async_loader)
            loader.close_async_loader()
            assert list(itertools.islice(loader, 5)) == [0, 1, 2, 3, 4]
            loader.close_async_loader()

    within_deadline(close)


def test_run_makes_elastic_jobs(horovod_site: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A worker dies, another one comes in its place, and the results are those of the workers that finish."""
    horovod: Any = importlib.import_module("horovod")
    script, struck = tmp_path / "hosts", tmp_path / "struck"
    script.write_text("#!/bin/sh\necho localhost:2\n")
    script.chmod(0o755)

    def train() -> tuple[int, float]:
        import horovod.torch as hvd
        import torch

        hvd.init()

        @hvd.elastic.run  # type: ignore[untyped-decorator]
        def steps(state: Any) -> float:
            while state.step < 6:
                total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="ones")
                if state.step == 3 and hvd.rank() == 1 and not struck.exists():
                    struck.touch()
                    os._exit(1)
                state.step += 1
                state.commit()
            return float(total)

        return hvd.size(), steps(hvd.elastic.TorchState(step=0))

    found = horovod.run(
        train,
        num_proc=2,
        min_num_proc=1,
        max_num_proc=2,
        reset_limit=5,
        cooldown_range=(0, 1),
        host_discovery_script=str(script),
        start_timeout=60,
    )
    assert struck.exists()
    assert found
    assert all(type(size) is int and total >= 1 for size, total in found)
    assert "belongs to elastic jobs" not in capfd.readouterr().err


def test_run_takes_horovods_arguments(horovod_site: str, capfd: pytest.CaptureFixture[str]) -> None:
    horovod: Any = importlib.import_module("horovod")

    def which(word: str) -> str:
        import horovod

        return f"{word} {horovod.__version__} {os.environ['HOROVOD_RANK']}"

    found = horovod.run(
        which,
        args=("speaks",),
        num_proc=2,
        use_gloo=True,
        start_timeout=20,
        hosts="localhost:2",
        ssh_port=22,
        disable_cache=True,
        use_mpi=True,
        verbose=0,
    )
    assert found == ["speaks 0.28.1 0", "speaks 0.28.1 1"]
    said = capfd.readouterr().err
    assert "horovod.run: --mpi: accepted without effect" in said
    assert "--gloo" not in said
    assert "--disable-cache" not in said
    with pytest.raises(farandole.UsageError, match="-np 3 is not between --min-np 1 and --max-np 2"):
        horovod.run(which, num_proc=3, min_num_proc=1, max_num_proc=2)
    assert horovod.run(which, args=("speaks",), reset_limit=3) == ["speaks 0.28.1 0"]
    assert "reset_limit: accepted without effect, it belongs to elastic jobs" in capfd.readouterr().err
    with pytest.raises(TypeError, match="unexpected arguments: nump"):
        horovod.run(which, nump=2)
    with pytest.raises(farandole.UsageError, match="more workers than the hosts have slots"):
        horovod.run(which, num_proc=3, hosts="elsewhere:2")
