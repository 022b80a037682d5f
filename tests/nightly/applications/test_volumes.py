"""Volumes of the universe are what their equations say, and what a code of cosmologists says."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest
from scipy.integrate import quad

from examples.common.volumes import (
    RANGES,
    UNITS,
    Box,
    Cosmology,
    deposit,
    displacement,
    drawn,
    growth,
    power,
    spectrum,
    volume,
)

CORNERS = [Cosmology(omega_m, 0.8, n_s) for omega_m in (0.2, 0.3, 0.4) for n_s in (0.8, 1.1)]


@pytest.mark.parametrize("cosmology", CORNERS)
def test_the_spectrum_is_that_of_camb(cosmology: Cosmology) -> None:
    if importlib.util.find_spec("camb") is None:
        pytest.skip("no oracle: pip install camb")
    k, z, theirs, sigma_8 = of_camb(cosmology)
    assert z == [0.0, 1.5]
    assert power(k, cosmology) == pytest.approx(theirs[0] * (cosmology.sigma_8 / sigma_8[0]) ** 2, rel=0.05)
    assert growth(cosmology, 1.5) == pytest.approx(sigma_8[1] / sigma_8[0], rel=0.007)


def of_camb(cosmology: Cosmology) -> tuple[np.ndarray, list[float], np.ndarray, list[float]]:
    """Wave numbers of the box, redshifts, linear spectra at these, and σ_8."""
    import camb

    asked = camb.CAMBparams()
    cold = (cosmology.omega_m - cosmology.omega_b) * cosmology.h**2
    asked.set_cosmology(
        H0=100 * cosmology.h, ombh2=cosmology.omega_b * cosmology.h**2, omch2=cold, omk=0, mnu=0, TCMB=2.7255
    )
    asked.InitPower.set_params(ns=cosmology.n_s)
    asked.NonLinear = camb.model.NonLinear_none
    asked.set_matter_power(redshifts=[1.5, 0.0], kmax=20)
    found = camb.get_results(asked)
    k, z, spectra = found.get_matter_power_spectrum(minkh=0.05, maxkh=0.8, npoints=60)
    return k, list(z), spectra, list(reversed(found.get_sigma8()))


@pytest.mark.parametrize("cosmology", CORNERS)
def test_spheres_of_8_mpc_differ_as_asked(cosmology: Cosmology) -> None:
    def density(log_k: float) -> float:
        k = np.exp(log_k)
        window = 3 * (np.sin(8 * k) - 8 * k * np.cos(8 * k)) / (8 * k) ** 3
        return float(k**3 * power(np.array([k]), cosmology)[0] * window**2 / (2 * np.pi**2))

    assert np.sqrt(quad(density, np.log(1e-4), np.log(20), limit=400)[0]) == pytest.approx(0.8, rel=1e-3)


@pytest.mark.parametrize("omega_m", [0.2, 0.3, 0.4])
def test_growth_is_the_integral_that_it_approximates(omega_m: float) -> None:
    """Heath 1977, equation 10: D = H(a) times the integral of (a H)⁻³."""

    def integral(z: float) -> float:
        def rate(a: float) -> float:
            return float(np.sqrt(omega_m / a**3 + 1 - omega_m))

        a = 1 / (1 + z)
        return float(rate(a) * quad(lambda a: (a * rate(a)) ** -3, 1e-8, a)[0])

    for z in (0.5, 1.5, 3.0):
        assert growth(Cosmology(omega_m), z) == pytest.approx(integral(z) / integral(0), rel=0.007)


def test_clouds_are_those_of_a_loop_and_lose_nothing() -> None:
    rng, cells = np.random.default_rng(0), 5
    position = rng.uniform(-7, 12, (3, 200))
    by_loop = np.zeros((cells,) * 3)
    for particle in position.T:
        for cell in np.ndindex(cells, cells, cells):
            far = np.abs((particle - cell + cells / 2) % cells - cells / 2)  # of a torus
            by_loop[cell] += np.prod(np.maximum(0, 1 - far))
    assert deposit(position, cells) == pytest.approx(by_loop, abs=1e-12)
    assert deposit(position, cells).sum() == pytest.approx(200)


def test_the_displacement_has_the_density_as_its_divergence() -> None:
    """- div ψ = δ to first order: the spectrum of the divergence is the one that was asked for."""
    box, cosmology = Box(32, 128.0), Cosmology()
    k = 2 * np.pi * np.fft.fftfreq(32, 128.0 / 32)
    bins = np.array([0.04, 0.09, 0.16, 0.25])
    measured = []
    for seed in range(12):
        psi = np.fft.fftn(displacement(cosmology, box, seed), axes=(1, 2, 3))
        divergence = 1j * (k[:, None, None] * psi[0] + k[:, None] * psi[1] + k * psi[2])
        measured.append(spectrum(1 - np.fft.ifftn(divergence).real, 128.0, bins))
    grid = np.stack(np.meshgrid(k, k, k, indexing="ij")).reshape(3, -1)
    size = np.linalg.norm(grid, axis=0)[1:]
    inside = [size[(size >= low) & (size < high)] for low, high in itertools.pairwise(bins)]
    expected = [power(each, cosmology).mean() for each in inside]
    assert np.mean(measured, axis=0) == pytest.approx(expected, rel=0.12)


def test_early_volumes_have_the_spectrum_that_was_asked_for() -> None:
    """At redshift 10, with the window of the clouds divided out, as far as shot noise leaves it."""
    box, cosmology, bins = Box(32, 128.0, (10.0,)), Cosmology(), np.array([0.04, 0.1, 0.2, 0.36])
    ratios = []
    for seed in range(12):
        field = volume(cosmology, box, seed)[..., 0] / UNITS
        k = 2 * np.pi * np.fft.fftfreq(32, 4.0)
        size = np.sqrt(sum(part**2 for part in np.meshgrid(k, k, k, indexing="ij")))
        window = np.prod([np.sinc(part * 2 / np.pi) ** 2 for part in np.meshgrid(k, k, k, indexing="ij")], axis=0)
        modes = np.abs(np.fft.fftn(field - 1) / window) ** 2 * (128 / 32**2) ** 3
        size[0, 0, 0] = 1.0
        expected = power(size, cosmology) * growth(cosmology, 10.0) ** 2
        ratios.append([(modes[at].sum() / expected[at].sum()) for at in between(size, bins)])
    assert np.mean(ratios, axis=0) == pytest.approx([1, 1, 1], abs=0.1)


def between(size: np.ndarray, bins: np.ndarray) -> list[np.ndarray]:
    """Masks of the wave numbers of each bin."""
    return [(size >= low) & (size < high) for low, high in itertools.pairwise(bins)]


def test_a_plane_wave_has_the_power_of_its_amplitude() -> None:
    x = np.arange(16) * 2 * np.pi / 16
    field = 1 + 0.1 * np.cos(3 * x)[:, None, None] * np.ones((16, 16, 16))
    bins = 2 * np.pi / 128 * np.array([2.99, 3.005, 3.2])
    modes_at_3 = 30  # six of (3, 0, 0), and 24 of (2, 2, 1)
    assert spectrum(field, 128.0, bins)[0] == pytest.approx(2 * 0.05**2 * 128**3 / modes_at_3)


def test_a_seed_is_a_volume_and_matter_is_kept() -> None:
    box = Box(16)
    first, again, other = (volume(drawn(seed), box, seed) for seed in (1, 1, 2))
    assert first.dtype == np.int16
    assert first.shape == (16, 16, 16, 2)
    assert (first == again).all()
    assert (first != other).any()
    assert first.mean(axis=(0, 1, 2)) == pytest.approx([UNITS, UNITS], rel=1e-3)
    assert first[..., 0].std() > first[..., 1].std()  # structure grows
    labels = np.array([drawn(seed).labels() for seed in range(500)])
    assert labels.dtype == np.float32
    assert np.abs(labels[:, :3]).max() <= 1
    assert np.abs(labels[:, :3].mean(axis=0)).max() < 0.1
    assert (labels[:, 3] == 0).all()
    assert len(RANGES) == 3
