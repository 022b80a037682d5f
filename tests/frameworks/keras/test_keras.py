"""``farandole.keras`` on two ranks with PyTorch, and under the names of Horovod; all backends in ``tests/nightly``."""

from __future__ import annotations

from typing import Any

from tests.support.frameworks import skip_without
from tests.support.keras.running import environment, everything_on_ranks

skip_without("keras")
skip_without("torch")


def test_everything_on_ranks(launch: Any) -> None:
    everything_on_ranks(launch, "torch", 2)


def test_scripts_of_horovod_find_what_they_import(launch: Any) -> None:
    script = """
        import inspect
        import keras
        import horovod.keras as hvd
        import horovod.keras.callbacks
        from horovod.keras.elastic import CommitStateCallback, KerasState, UpdateBatchStateCallback, run
        import farandole.keras

        assert horovod.keras.callbacks is farandole.keras.callbacks is hvd.callbacks
        assert hvd.elastic.KerasState is KerasState
        hvd.init()
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op=hvd.Sum, compression=hvd.Compression.none)
        assert isinstance(optimizer, keras.optimizers.SGD)
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=None)
        given = list(inspect.signature(hvd.DistributedOptimizer).parameters)
        assert given[:8] == ["optimizer", "name", "device_dense", "device_sparse", "compression", "sparse_as_dense",
                             "gradient_predivide_factor", "op"]
        assert list(inspect.signature(hvd.callbacks.LearningRateWarmupCallback).parameters) == [
            "initial_lr", "warmup_epochs", "momentum_correction", "steps_per_epoch", "verbose"]
        assert all(hasattr(hvd, name) for name in (
            "allreduce", "allgather", "broadcast", "reducescatter", "load_model", "broadcast_global_variables"))
        print("found")
        """
    finished = launch(1, script, options=["--horovod"], environment=environment("torch"))
    assert "found" in finished.ok().lines()
