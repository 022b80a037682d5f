"""``farandole.keras`` on ranks, in elastic jobs, and under the names of Horovod, on each backend of Keras."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.frameworks import QUICK_XLA, lean, skip_without
from tests.support.keras.sources import FOLDER, ROOT

skip_without("keras")

BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
    for name in ("torch", "tensorflow", "jax")
]
SIZES: dict[str, tuple[int, ...]] = {"torch": (3,), "tensorflow": (2,), "jax": (2,)}  # a minute each with what compiles
ABOVE = {
    "a_checkpoint_is_read_although_a_state_was_committed_before",
    "a_schedule_sets_the_rate_by_epochs_or_batches",
    "a_training_goes_on_from_its_checkpoint",
    "all_optimizers_of_a_model_are_kept",
    "an_elastic_fit_that_counts_from_0_goes_on_with_the_rates_of_its_epoch",
    "batches_of_a_sampler_are_taken_in_its_order_and_once",
    "momentum_is_corrected_where_the_rate_changes",
    "rates_by_samples_go_on_where_epochs_get_more_samples",
    "rates_by_samples_go_on_with_the_model",
    "rates_by_samples_turn_where_only_the_global_batch_is_another",
    "what_a_state_has_committed_is_newer_than_a_checkpoint",
}
"""Cases of what lies above the backends: they run on PyTorch, and on all in ``make large``."""
LATER = {
    "tensorflow": ABOVE
    | {
        "a_copy_of_an_optimizer_is_distributed_and_shares_nothing",
        "a_model_is_compiled_again",
        "a_saved_accumulation_is_not_taken_for_a_mean_or_a_sum",
        "local_layers_stay_local",
        "local_layers_stay_local_in_checkpoints_and_states",
        "passes_are_summed_or_averaged_before_a_step",
        "several_steps_of_one_call_and_eager_ones_train_as_one",
        "virtual_workers_accumulate_as_one_worker_does",
        "virtual_workers_give_the_same_bits_on_any_number_of_ranks",
    },
    "jax": ABOVE
    | {
        "a_broadcast_gives_all_ranks_the_model_and_the_optimizer_of_one",
        "a_saved_model_goes_on_distributed",
        "embeddings_and_random_layers_train",
        "factors_are_those_that_were_asked_for",
        "half_precision_trains",
        "ranks_outside_of_a_process_set_train_alone",
        "the_noise_scale_is_that_of_numpy_on_the_same_gradients",
        "two_models_train_side_by_side_whatever_was_made_before",
        "virtual_workers_train_as_one_worker_does",
    },
}
"""Cases that compile much: each runs on PyTorch and on one of the two that compile, and on all in ``make large``."""
ELASTIC = BACKENDS[:1]
if os.environ.get("LARGE"):  # see ``make large``
    SIZES, LATER, ELASTIC = dict.fromkeys(SIZES, (1, 2, 3, 4)), {}, BACKENDS


def environment(backend: str, *needed: str) -> dict[str, str]:
    """Variables of a job."""
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", **QUICK_XLA, **lean(backend, *needed)}


@pytest.mark.parametrize(("backend", "size"), [(backend, size) for backend in SIZES for size in SIZES[backend]])
def test_everything_on_ranks(launch: Any, backend: str, size: int) -> None:
    skip_without(backend)
    texts = [(FOLDER / f"{part}_cases.py").read_text() for part in ("callback", "optimizer", "state", "virtual")]
    every = {name for text in texts for name in re.findall(r"^@case\ndef (\w+)", text, re.MULTILINE)}
    later = LATER.get(backend, set())
    assert later < every
    cases = sorted(every - later) if later else []
    script = FOLDER / "on_ranks.py"
    finished = launch(size, script, arguments=cases, environment=environment(backend), deadline_s=580.0).ok()
    assert every - later <= set(finished.lines())


@pytest.mark.parametrize("backend", ELASTIC)
def test_a_worker_is_killed_another_one_comes_and_nobody_can_tell(launch: Any, tmp_path: Path, backend: str) -> None:
    finished = launch(
        2,
        FOLDER / "elastic_training.py",
        options=["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1", "--start-timeout", "120"],
        arguments=[str(tmp_path)],
        environment=environment(backend),
        deadline_s=580.0,
    ).ok()
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result-*.json")]
    assert len(results) == 2, finished.stderr
    for found, expected in results:
        assert found["generation"] >= 2  # 3, unless a survivor was slower than the newcomer
        assert all(one == other for one, other in found["numbers"]), found["numbers"]
        assert any(position not in (0, 96) for _, position in found["sizes"]), "no epoch began in its middle"
        batches = iter(found["seen"])
        for _ in range(found["epochs"]):  # in each epoch every sample is committed once, by whichever rank
            rows: list[int] = []
            while len(rows) < 96:
                rows += next(batches)
            assert sorted(rows) == list(range(96))
        assert next(batches, None) is None
        for one, other in zip(found["values"], expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)
    assert results[0][0]["values"] == results[1][0]["values"]


@pytest.mark.skipif(
    "LARGE" not in os.environ, reason="the tutorial trains in the tests of the documentation: make large"
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_example_learns(launch: Any, backend: str) -> None:
    said = launch(
        2, ROOT / "examples" / "keras_digits.py", environment=environment(backend, "sklearn"), deadline_s=400.0
    )
    found = re.search(r"test accuracy ([\d.]+) on 2 worker", said.ok().stdout)
    assert found
    assert float(found[1]) > 0.9


def test_ranks_that_wait_for_each_other_without_graphs_are_told_within_seconds(launch: Any) -> None:
    """With a new optimizer on one rank alone: on PyTorch no thread is there that could bring what is missing."""
    skip_without("torch")
    script = """
        import keras
        import numpy as np
        import farandole.keras as hvd
        hvd.init()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])

        def compile():
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")

        compile()
        batch = np.ones((4, 4), np.float32), np.ones((4, 2), np.float32)
        model.train_on_batch(*batch)
        if hvd.rank() == 0:
            compile()
        try:
            model.train_on_batch(*batch)
        except hvd.elastic.HorovodInternalError as error:  # a StallError, had it taken as long as one is waited for
            print(type(error).__name__)
        """
    told = {**environment("torch"), "FARANDOLE_STALL_SHUTDOWN_S": "40"}
    assert launch(2, script, environment=told, deadline_s=400.0).ok().lines() == ["MismatchError"] * 2


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
