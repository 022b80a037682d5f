"""CosmoGAN: maps are slabs of volumes, measures are those of loops, and ranks train as one process does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.signal import correlate2d
from torch import nn

from examples.common.volumes import UNITS, Box, Cosmology, volume
from examples.cosmogan.maps import Sizes, decoded, in_memory, maps, scaled, slabs, write
from examples.cosmogan.measures import chance, compared, likeness, log_spectra
from examples.cosmogan.model import GROUP, Discriminator, Generator, average, spread, untrained
from examples.cosmogan.training import generated
from tests.support.examples.continued import STAGED, continues
from tests.support.examples.killed import trained_with_a_kill
from tests.support.frameworks import without_compiler
from tests.support.launching import Launch, run_to_end
from tests.support.paths import ROOT, SUPPORT

PYTHONPATH = os.pathsep.join(filter(None, [without_compiler().get("PYTHONPATH"), str(ROOT)]))
LEAN = {**without_compiler(), "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eighty maps to train on, and others."""
    folder = tmp_path_factory.mktemp("cosmogan") / "made"
    write(folder, Sizes(train=10, test=4), seed=0)
    return folder


# -- maps --------------------------------------------------------------------------------------------------------------


def test_maps_are_slabs_of_volumes_that_no_other_file_has(made: Path) -> None:
    counts = volume(Cosmology(), Box(32, redshifts=(0.0,)), seed=1)[..., 0]
    found = slabs(counts)
    for slab in range(8):
        assert found[slab] == pytest.approx(counts[:, :, 4 * slab : 4 * slab + 4].mean(axis=2) / UNITS)
    train, test = np.load(made / "train.npy"), np.load(made / "test.npy")
    assert train.shape == (80, 32, 32)
    assert (train[8:16] == found).all()
    assert len({each.tobytes() for each in (*train, *test)}) == 80 + 32
    source = maps(made / "train.npy")
    assert len(source) == 80
    assert (source[9] == decoded(found[1])).all()
    assert source[9].dtype == np.float32


def test_densities_are_scaled(made: Path) -> None:
    assert scaled(np.array([0.0, 1.0, 3.0])).tolist() == [-1.0, 0.0, 0.5]
    assert np.abs(in_memory(maps(made / "test.npy"))).max() <= 1


def test_columns_first_are_the_same_maps(made: Path, tmp_path: Path) -> None:
    known = np.load(made / "test.npy")
    np.save(tmp_path / "columns.npy", np.asfortranarray(known))
    found = maps(tmp_path / "columns.npy")
    assert all((found[i] == decoded(known[i])).all() for i in range(len(known)))


# -- measures ----------------------------------------------------------------------------------------------------------


def test_spectra_are_those_of_a_loop(made: Path) -> None:
    one = np.load(made / "test.npy")[0].astype(np.float64)
    rings: dict[int, list[float]] = {}
    for u in range(-16, 16):
        for v in range(-16, 16):
            wave = np.exp(-2j * np.pi * (u * np.arange(32)[:, None] + v * np.arange(32)) / 32)
            rings.setdefault(round(float(np.hypot(u, v))), []).append(abs((one * wave).mean()) ** 2)
    expected = [np.log(np.mean(rings[ring])) for ring in range(1, 16)]
    assert log_spectra(one[None])[0] == pytest.approx(expected, rel=1e-6)


def test_likeness_is_the_highest_correlation_and_finds_copies(made: Path) -> None:
    train, unseen = (in_memory(maps(made / f"{part}.npy")) for part in ("train", "test"))
    copied = np.roll(np.rot90(train[7])[::-1], (3, 11), (0, 1))
    noise = np.random.default_rng(0).normal(0, 0.05, (32, 32)).astype(np.float32)
    assert likeness(copied[None], train)[0] == pytest.approx(1, abs=1e-5)
    assert likeness((copied + noise)[None], train)[0] > 0.9
    assert likeness(unseen, train).max() < 0.8
    one, other = unseen[0] - unseen[0].mean(), train[0] - train[0].mean()
    views = [np.rot90(each, turns) for each in (one, one[::-1]) for turns in range(4)]
    best = max(correlate2d(np.tile(each, (2, 2)), other, "valid").max() for each in views)
    expected = best / np.linalg.norm(one) / np.linalg.norm(other)
    assert likeness(unseen[:1], train[:1])[0] == pytest.approx(expected, abs=1e-5)


def test_chance_is_passed_as_often_as_it_says(made: Path) -> None:
    rng = np.random.default_rng(0)
    drawn = np.exp(rng.normal(-0.85, 0.08, (400, 2, 40)))
    passed = [one.max() > chance(other, 0.9) for one, other in drawn]
    assert 0.06 < np.mean(passed) < 0.16  # 10 %, and a little more as the distribution is fitted
    train, unseen = (in_memory(maps(made / f"{part}.npy")) for part in ("train", "test"))
    limit = chance(likeness(unseen, train), 0.99)
    assert likeness(unseen, train).max() < limit < likeness(np.roll(train[:1], 5, 1), train)[0]


def test_a_collapsed_generator_passes_no_measure(made: Path) -> None:
    real = in_memory(maps(made / "train.npy"))
    same = compared(np.repeat(real[:1], 80, axis=0), real)
    halves = compared(real[::2], real[1::2])
    assert same["spread"] < 0.05
    assert 0.7 < halves["spread"] < 1.4
    assert halves["inside"] == 1
    assert halves["ks"] < 0.02 < compared(real * 0.8, real)["ks"]


# -- networks ----------------------------------------------------------------------------------------------------------


def test_networks_see_no_end_of_the_map() -> None:
    torch.manual_seed(0)
    discriminator = Discriminator(width=4).eval()
    x = torch.randn(GROUP, 1, 32, 32)
    features = [x, x.roll((8, 16), (2, 3))]
    for halve in discriminator.halvings:
        features = [halve(each) for each in features]
    torch.testing.assert_close(features[1], features[0].roll((1, 2), (2, 3)), atol=1e-5, rtol=0)
    generator = Generator(width=4).eval()
    y = torch.randn(2, 16, 4, 4)
    wrapped = nn.functional.pad(y, (1, 1, 1, 1), mode="circular")
    here = generator.doublings[0](wrapped)
    assert here.shape == (2, 8, 8, 8)
    moved = generator.doublings[0](nn.functional.pad(y.roll(1, 2), (1, 1, 1, 1), mode="circular"))
    torch.testing.assert_close(moved, here.roll(2, 2), atol=1e-6, rtol=0)


def test_the_spread_of_a_group_is_its_own() -> None:
    x = torch.cat([torch.ones(GROUP, 3, 4, 4), torch.randn(GROUP, 3, 4, 4)])
    found = spread(x)
    assert found.shape == (2 * GROUP, 1, 4, 4)
    assert float(found[:GROUP].max()) < 1e-3
    torch.testing.assert_close(found[-1, 0, 0, 0], x[GROUP:].var(dim=0, unbiased=False).sqrt().mean())


def test_weights_are_averaged() -> None:
    generator, mean, _ = untrained(0, nn.BatchNorm2d, 4)
    before = generator.first.weight.detach().clone()
    generator(torch.randn(8, 64))
    with torch.no_grad():
        generator.first.weight += 1
    average(mean, generator, keep=0.75)
    torch.testing.assert_close(mean.first.weight.detach(), before + 0.25)
    assert generated(generator, 3, seed=0).shape == (3, 32, 32)
    assert (generated(mean, 3, seed=0) == generated(mean, 3, seed=0)).all()
    assert mean.norms[0].state_dict()["num_batches_tracked"] == 0  # its statistics are measured in the end


# -- training ----------------------------------------------------------------------------------------------------------


def test_two_optimizers_on_two_ranks_step_as_plain_torch_does(made: Path, launch: Launch, tmp_path: Path) -> None:
    found = {}
    for size in (1, 2):
        result = tmp_path / f"{size}.npz"
        script = SUPPORT / "examples" / "train_cosmogan.py"
        launch(size, script, arguments=[str(made), str(result)], environment=LEAN).ok()
        found[size] = dict(np.load(result))
    names = [name for name in found[1] if f"plain-{name}" in found[1]]
    assert len(names) > 8
    for size, each in found.items():
        assert each["losses"] == pytest.approx(found[1]["losses"], rel=1e-3), size
        for name in names:
            assert each[name] == pytest.approx(found[1][f"plain-{name}"], abs=2e-5), (size, name)


def test_each_map_counts_once_when_a_worker_is_killed(made: Path, tmp_path: Path) -> None:
    write(tmp_path / "made", Sizes(train=80, test=2), seed=0)
    arguments = ["--data", str(tmp_path / "made"), "--epochs", "6"]
    history = trained_with_a_kill("examples.cosmogan.train", arguments, tmp_path, environment=LEAN)
    assert history.problems(640, 6) == []
    assert {record.size for records in history.begun.values() for record in records} >= {1, 2}


def test_a_training_goes_on_from_its_checkpoint_and_from_a_stage(made: Path, tmp_path: Path) -> None:
    continues(
        "examples.cosmogan.train",
        ["--data", str(made)],
        tmp_path,
        says="discriminator",
        ends="in log P",
        first=STAGED,
        environment=LEAN,
    )


def test_the_table_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.cosmogan", "--reproduce", "--quick", "--out", str(tmp_path)]
    said = run_to_end(command, tmp_path, 300.0, LEAN).ok().stdout
    assert "pixel distributions differ by at most .02" in said
    assert {path.name for path in (tmp_path / "cosmogan").iterdir()} == {"results.json", "table.md", "picture.png"}
