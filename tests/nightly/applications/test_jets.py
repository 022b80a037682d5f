"""Jets: the events are what physics says, files are read as they are, and the training does not know who trains it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from scipy.stats import binomtest

from examples.jets.collisions import ETA, GLUINOS, JETS, Process, begun, collide, toy
from examples.jets.experiment import best_cut, counts, matched
from examples.jets.images import SYMMETRIES, Plan, columns, images, make
from farandole import models
from tests.support.examples.continued import continues
from tests.support.examples.killed import trained_with_a_kill
from tests.support.frameworks import without_compiler
from tests.support.launching import Launch, run_to_end
from tests.support.paths import ROOT, SUPPORT

LEAN = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
WITH_ROOT = {"PYTHONPATH": os.pathsep.join(filter(None, [without_compiler().get("PYTHONPATH"), str(ROOT)]))}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set of the toy: 1800 events to train, 300 to validate, 600 to test."""
    folder = tmp_path_factory.mktemp("jets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("examples.jets.images.generator", lambda: "the toy")
        make(folder, Plan(2700, 0, seed=1))
    return folder


# -- events ------------------------------------------------------------------------------------------------------------


def test_a_gluino_decays_into_three_light_quarks_of_its_mass() -> None:
    pytest.importorskip("pythia8mc")
    pythia, masses = begun(Process(1600.0), seed=3), []
    for _ in range(20):
        assert pythia.next()
        gluinos = [p for p in pythia.event if p.id() == 1000021 and len(set(p.daughterList())) == 3]
        assert len(gluinos) == 2
        for gluino in gluinos:
            quarks = [pythia.event[number] for number in gluino.daughterList()]
            assert sorted(abs(quark.id()) for quark in quarks) == [1, 2, 3]
            assert len({quark.id() > 0 for quark in quarks}) == 1
            energy, *momentum = (sum(getattr(q, each)() for q in quarks) for each in ("e", "px", "py", "pz"))
            masses.append(np.sqrt(energy**2 - sum(each**2 for each in momentum)))
    assert np.abs(np.array(masses) - 1600).max() <= 5


def test_images_have_the_momenta_and_the_energy_of_their_events() -> None:
    pytest.importorskip("pythia8mc")
    centre = (np.arange(64) + 0.5) / 64
    phi = np.pi * (2 * centre - 1)
    medians = []
    for process in (JETS, Process(1200.0), GLUINOS):
        hist, ht = collide(process, 11, 60)
        total = hist.sum((1, 2))
        assert ht.min() > 1200
        assert total.max() < 13_000
        assert np.median(np.abs(ht / total - 1)) < 0.1  # towers of half a GeV are in no jet; masses are no momenta
        x, y = hist.sum(1) @ np.cos(phi), hist.sum(1) @ np.sin(phi)
        assert np.median(np.hypot(x, y) / total) < 0.1  # nothing but neutrinos, and what is beyond |η| < 2.5, is lost
        medians.append(np.median(ht))
    assert medians[0] < medians[1] < medians[2]
    assert 1.5 * 1400 < medians[2] < 2.1 * 1400


def test_gluinos_have_more_jets() -> None:
    pytest.importorskip("pythia8mc")
    jets = [np.mean([cones(image) for image in collide(process, 5, 40)[0]]) for process in (JETS, GLUINOS)]
    assert jets[0] < 3.5
    assert jets[1] > 4.5


def cones(image: Any) -> int:
    """Jets above 100 GeV, by a finder of the simplest kind: what is within 0.4 of the highest tower is one."""
    eta, phi = np.meshgrid(*(np.arange(64.0) - 32,) * 2, indexing="ij")
    left, found = image.copy(), 0
    for _ in range(30):
        at = np.unravel_index(np.argmax(left), left.shape)
        apart = np.abs(phi - phi[at])
        near = np.hypot((eta - eta[at]) * 2 * ETA / 64, np.minimum(apart, 64 - apart) * 2 * np.pi / 64) < 0.4
        found += left[near].sum() > 100
        left[near] = 0
    return found


def test_the_toy_can_be_learned(data: Path) -> None:
    hist, y, ht = columns(data, "train")
    assert hist.shape == (1800, 64, 64)
    assert y.mean() == 0.5
    cut = best_cut(ht, y)
    assert np.mean((ht > cut) == y) > 0.7
    many = counts(hist)[:, 3]
    assert np.mean(many[y == 1]) > np.mean(many[y == 0])


def test_a_cut_is_the_best_of_all_and_bins_are_matched() -> None:
    rng = np.random.default_rng(0)
    ht, y = rng.integers(1200, 3000, 300).astype(np.float32), (rng.random(300) < 0.5).astype(np.float32)
    best = max(np.mean((ht > cut) == y) for cut in np.unique(ht))
    assert np.mean((ht > best_cut(ht, y)) == y) == best
    rows = matched(ht, y, seed=0)
    bins = [np.bincount((ht[rows][y[rows] == kind] // 100).astype(int), minlength=31) for kind in (0, 1)]
    assert (bins[0] == bins[1]).all()
    assert len(set(rows)) == len(rows) > 200


# -- files -------------------------------------------------------------------------------------------------------------


def test_any_number_of_processes_makes_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.jets.images.generator", lambda: "the toy")
    plan = Plan(900, 30, seed=5)
    make(tmp_path / "one", plan)
    for rank in (2, 0, 1):
        make(tmp_path / "three", plan, rank, 3)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert (
        names
        == sorted(path.name for path in (tmp_path / "three").iterdir())
        == sorted(f"{name}.h5" for name in plan.parts())
    )
    for name in names:
        with h5py.File(tmp_path / "one" / name) as one, h5py.File(tmp_path / "three" / name) as three:
            assert all((one["all_events"][key][:] == three["all_events"][key][:]).all() for key in one["all_events"])


@pytest.mark.parametrize("how", ["contiguous", "gzip", "bitshuffle", "blosc", "lzf"])
def test_the_real_layout_is_read_as_it_is(how: str, tmp_path: Path) -> None:
    hist, _ = toy(GLUINOS, 1, 20)
    filters: dict[str, Any] = {"bitshuffle": hdf5plugin.Bitshuffle(), "blosc": hdf5plugin.Blosc(), "contiguous": {}}
    options = dict(filters.get(how, {"compression": how}))
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file.create_dataset("all_events/hist", data=hist.astype("f8" if how == "gzip" else "f4"), **options)
        file["all_events/y"] = np.arange(20) % 2
        file["all_events/weight"] = np.ones(20)
    source = images(tmp_path, "train")
    assert len(source) == 20
    for row in (19, 0, 7):
        image, label = source[row]
        assert (image.shape, image.dtype, label) == ((64, 64, 1), np.float32, row % 2)
        assert np.expm1(4 * image[..., 0]) == pytest.approx(hist[row], rel=1e-4, abs=1e-4)
    assert columns(tmp_path, "train")[2] == pytest.approx(hist.sum((1, 2)), rel=1e-5)  # it has no H_T


def test_turning_an_event_keeps_what_a_symmetric_detector_sees(data: Path) -> None:
    image, label = images(data, "val")[0]
    for seed in range(8):
        other, same = image, label
        for step in SYMMETRIES:
            other, same = step((other, same), np.random.default_rng(seed))
        assert same == label
        assert sorted(other.ravel()) == sorted(image.ravel())
        rings = other.sum((1, 2)), image.sum((1, 2))
        assert rings[0] == pytest.approx(rings[1], rel=1e-4) or rings[0][::-1] == pytest.approx(rings[1], rel=1e-4)


# -- training ----------------------------------------------------------------------------------------------------------


def test_two_workers_train_as_one_and_as_keras_alone(data: Path, launch: Launch, tmp_path: Path) -> None:
    found = {}
    for size in (1, 2):
        result = tmp_path / f"{size}.npz"
        script = SUPPORT / "examples" / "train_jets.py"
        launch(size, script, arguments=[str(data), str(result)], environment={**LEAN, **WITH_ROOT}).ok()
        found[size] = dict(np.load(result))
    assert found[2]["losses"] == pytest.approx(found[1]["losses"], rel=2e-3)
    assert found[1]["losses"][1] < found[1]["losses"][0]
    weights = [name for name in found[1] if name.startswith("w")]
    assert len(weights) == 10
    for name in weights:
        assert found[2][name] == pytest.approx(found[1][name], abs=5e-3)
        assert found[1][f"plain{name[1:]}"] == pytest.approx(found[1][name], abs=5e-3)


def test_each_event_counts_once_when_a_worker_is_killed(data: Path, tmp_path: Path) -> None:
    arguments = ["--data", str(data), "--epochs", "3"]
    history = trained_with_a_kill("examples.jets.train", arguments, tmp_path, steps=2, environment=LEAN)
    assert history.problems(1800, 3) == []
    assert {record.size for records in history.begun.values() for record in records} >= {1, 2}


def test_a_training_goes_on_from_its_checkpoint_and_from_a_stage_and_its_model_has_a_fact_sheet(
    data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    continues(
        "examples.jets.train",
        ["--data", str(data), "--seed", "3"],
        tmp_path,
        says="loss",
        ends="accuracy 0.",
        first=["--model", "published"],
        environment={**LEAN, **WITH_ROOT},
    )
    published = tmp_path / "published"
    assert models.verify(published) == []
    facts = models.facts(published)
    source = images(data, "train")
    assert [(each.name, each.digest, each.samples) for each in facts.data] == [
        (data.name, source.manifest.digest, 1800)
    ]
    assert (facts.recipe.workers, facts.recipe.seeds["seed"]) == (2, "3")
    assert "examples.jets.train" in facts.recipe.command
    (accuracy,) = facts.figures
    right = 600 * accuracy.value  # of 600 events
    assert right == pytest.approx(round(right))
    low, high = binomtest(round(right), 600).proportion_ci()
    assert accuracy.interval == pytest.approx((high - low) / 2, abs=0.005)
    assert sum(array.size for array in models.load(published).values()) == facts.weights.parameters > 30_000


def test_the_table_is_made_and_says_that_its_events_are_those_of_the_toy(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.jets", "--reproduce", "--quick", "--out", str(tmp_path)]
    found = without_compiler()
    environment = {**found, "TESTS_WITHOUT": f"{found.get('TESTS_WITHOUT', '')} pythia8mc"}
    said = run_to_end(command, tmp_path, 300.0, environment).ok().stdout
    assert "baseline" in said
    assert "the network beats both baselines" in said
    assert f"{'NO ' if found else 'yes'}  the events are those of Pythia 8: made by" in said
    assert {path.name for path in (tmp_path / "jets").iterdir()} == {"results.json", "table.md", "picture.png"}
