"""Proton collisions at 13 TeV as a calorimeter sees them: gluino pairs that decay by R-parity violation, and QCD jets.

    events = collide(GLUINOS, seed=3, number=500)   # Pythia 8.3 (pip install pythia8mc), GPL-2: an optional extra
    events = toy(GLUINOS, seed=3, number=500)       # sums of Gaussian jets, without it

An image is the transverse energy of visible particles in 64 x 64 towers of pseudorapidity and azimuth, |η| < 2.5, in
GeV. H_T is the sum of the transverse momenta of anti-k_T jets (R = 0.4, p_T > 30 GeV, |η| < 2.5), of the toy that of
its towers. Events with H_T > 1.2 TeV are kept. As in Bhimji et al., arXiv:1711.03573, without a detector.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

PIXELS, ETA, LEAST_HT = 64, 2.5, 1200.0
Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


@final
@dataclass(frozen=True)
class Process:
    """A kind of collisions: gluino pairs of ``mass`` in GeV, or with 0 QCD jets with p̂_T > 600 GeV.

    ``flat``: QCD jets whose spectrum falls slower by p̂_T⁴, so that there are enough of every H_T.
    """

    mass: float = 0.0
    flat: bool = False


GLUINOS, JETS, FLAT_JETS = Process(mass=1400.0), Process(), Process(flat=True)


Event = tuple[Floats, float]
"""An image, 64 x 64 in GeV, and H_T in GeV; ``Events`` are those of many."""
Events = tuple[Floats, Floats]


def slha(mass: float) -> str:
    """Spectrum and decays for Pythia, arXiv:hep-ph/0311123: ~g -> u d s by a λ'' coupling, squarks out of reach.

    Without a block MODSEL Pythia leaves supersymmetry off; R-parity violation (MODSEL 4) would ask for couplings, and
    with the decay given by a table none are needed.
    """
    squarks = "".join(f" {kind}00000{flavour} 5000.0\n" for kind in (1, 2) for flavour in range(1, 7))
    decay = "DECAY 1000021 1.0\n 0.5 3 1 2 3\n 0.5 3 -1 -2 -3\n"
    return f"BLOCK MODSEL\n 1 0\nBLOCK MASS\n 1000021 {mass:.1f}\n{squarks}{decay}"


def collide(process: Process, seed: int, number: int) -> Events:
    """Events of Pythia; 100 to 300 a second."""
    from pythia8mc import SlowJet

    return _kept(_generated(begun(process, seed), SlowJet(-1, 0.4, 30.0, ETA, 2)), number)


def begun(process: Process, seed: int) -> Any:
    """A generator of Pythia that is ready for ``next()``."""
    from pythia8mc import Pythia

    pythia = Pythia("", False)
    with tempfile.TemporaryDirectory() as folder:
        spectrum = Path(folder) / "spectrum.slha"
        spectrum.write_text(slha(process.mass))
        unknown = [setting for setting in _settings(process, seed, spectrum) if not pythia.readString(setting)]
        if unknown or not pythia.init():
            raise RuntimeError(f"Pythia does not begin {process}, settings unknown to it: {unknown}; try 8.317.2")
    return pythia


def _settings(process: Process, seed: int, spectrum: Path) -> list[str]:
    common = ["Print:quiet = on", "Beams:eCM = 13000.", "Random:setSeed = on", f"Random:seed = {1 + seed % 10**8}"]
    if process.mass:
        names = ("gg2gluinogluino", "qqbar2gluinogluino")
        return [*common, "SLHA:verbose = 0", f"SLHA:file = {spectrum}", *(f"SUSY:{name} = on" for name in names)]
    biased = ["PhaseSpace:bias2Selection = on", "PhaseSpace:bias2SelectionPow = 4."] if process.flat else []
    return [*common, "HardQCD:all = on", "PhaseSpace:pTHatMin = 600.", *biased]


def _generated(pythia: Any, finder: Any) -> Iterator[Event]:
    while True:
        if pythia.next():
            finder.analyze(pythia.event)
            ht = sum(finder.pT(jet) for jet in range(finder.sizeJet()))
            if ht > LEAST_HT:
                seen = [(p.eta(), p.phi(), p.eT()) for p in pythia.event if p.isFinal() and p.isVisible()]
                yield towers(*np.array(seen).T), ht


def towers(eta: Array, phi: Array, energy: Array) -> Floats:
    """Sum energies of particles in the towers in which they arrive; those beyond |η| < 2.5 are not seen."""
    limits = ((-ETA, ETA), (-np.pi, np.pi))
    return np.histogram2d(eta, phi, (PIXELS, PIXELS), limits, weights=energy)[0].astype(np.float32)


def toy(process: Process, seed: int, number: int) -> Events:
    """Sums of Gaussian jets: of QCD two to four with a falling spectrum, of gluinos six from two decays into three.

    Makes no claim but the format and that it can be learned: for machines without Pythia.
    """
    rng = np.random.default_rng([seed, int(process.mass), process.flat])
    return _kept(_toy_events(process, rng), number)


def _toy_events(process: Process, rng: np.random.Generator) -> Iterator[Event]:
    while True:
        jets = 6 + rng.poisson(0.5) if process.mass else 2 + rng.poisson(0.7)
        scale = 1.6 * process.mass if process.mass else 1200 * (1 + rng.pareto(2.0 if process.flat else 6.0))
        energy = scale * rng.normal(1, 0.15) * rng.dirichlet(np.full(jets, 3.0))
        centre = np.stack([rng.normal(0, 1, jets).clip(-2.3, 2.3), rng.uniform(-np.pi, np.pi, jets)], 1)
        of = np.repeat(np.arange(jets), rng.poisson(15 + energy / 25) + 1)  # the jet of each particle
        share = rng.exponential(size=len(of))
        hard = share * (energy / np.bincount(of, share, jets))[of]
        soft = rng.uniform((-ETA, -np.pi), (ETA, np.pi), (rng.poisson(250), 2))
        places = np.concatenate([centre[of] + rng.normal(0, 0.1, (len(of), 2)), soft])
        azimuth = (places[:, 1] + np.pi) % (2 * np.pi) - np.pi
        image = towers(places[:, 0], azimuth, np.concatenate([hard, rng.exponential(0.8, len(soft))]))
        yield image, float(image.sum())


def _kept(events: Iterator[Event], number: int) -> Events:
    images, ht = zip(*islice((event for event in events if event[1] > LEAST_HT), number), strict=True)
    return np.stack(images), np.array(ht, np.float32)
