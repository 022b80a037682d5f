"""Weather of a made-up climate: zonal means, smooth noise, tropical cyclones, lows that are none, atmospheric rivers.

    fields = weather(np.random.default_rng(3))          # (96, 144, 8) float32, channels as CHANNELS, SI units
    weak = weather(np.random.default_rng(3), strength=0.5)

Cyclones have the pressure of Holland 1980 (Monthly Weather Review 108, 1212), p = p_c + Δp·exp(-(R/r)^B), and the
wind in balance with it, V²/r + fV = (1/ρ) dp/dr, its equation 5. Rows go from south to north.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

CHANNELS = ("TMQ", "QREFHT", "U850", "V850", "PSL", "T500", "T200", "PRECT")
"""Water vapour (kg/m²), humidity (kg/kg), winds (m/s), sea-level pressure (Pa), temperatures (K), rain (m/s)."""
ROWS, COLUMNS = 96, 144
LAT = (np.arange(ROWS) + 0.5) * 180 / ROWS - 90
LON = np.arange(COLUMNS) * 360 / COLUMNS
EARTH_KM, ROTATION, DENSITY = 6371.0, 7.292e-5, 1.15
"""Radius in km, angular velocity in 1/s, density of air near the sea in kg/m³."""

Array = npt.NDArray[Any]


def unit(lat: Array, lon: Array) -> Array:
    """Points on the unit sphere, (..., 3); degrees."""
    lat, lon = np.radians(lat), np.radians(lon)
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat) + 0 * lon], -1)


GRID = unit(*np.meshgrid(LAT, LON, indexing="ij"))
EAST = np.stack([-np.sin(np.radians(LON)), np.cos(np.radians(LON)), 0 * LON], -1)[None]
NORTH = np.cross(GRID, EAST)


def weather(random: np.random.Generator, strength: float = 1.0) -> Array:
    """One state of the atmosphere. ``strength`` multiplies the Δp and the warm core of the tropical cyclones."""
    field = dict(zip(CHANNELS, background(random), strict=True))
    for _ in range(random.poisson(2.5)):
        lat, lon = random.choice((-1, 1)) * random.uniform(10, 30), random.uniform(0, 360)
        deficit = strength * random.uniform(800, 4000)
        km = cyclone(field, lat, lon, deficit, radius=random.uniform(170, 320), shape=random.uniform(1.5, 2.2))
        core = deficit / 1000 * np.exp(-((km / 350) ** 2))
        field["T500"] += 1.2 * core
        field["T200"] += 1.6 * core
        moist(field, 12 * np.exp(-((km / 550) ** 2)))
    for _ in range(random.poisson(3)):  # lows of middle latitudes: gales around a cold core
        lat, lon = random.choice((-1, 1)) * random.uniform(38, 60), random.uniform(0, 360)
        deficit = random.uniform(1500, 3500)
        km = cyclone(field, lat, lon, deficit, radius=random.uniform(350, 600), shape=random.uniform(1.2, 1.6))
        field["T500"] -= deficit / 1000 * np.exp(-((km / 700) ** 2))
    for _ in range(random.poisson(3)):  # surges of the trade winds: gales that turn around nothing
        km = distance(random.choice((-1, 1)) * random.uniform(8, 30), random.uniform(0, 360))
        field["U850"] -= random.uniform(10, 20) * np.exp(-((km / random.uniform(400, 700)) ** 2))
    for _ in range(random.integers(2, 6)):
        river(field, random)
    field["PRECT"] *= np.exp(0.06 * (field["TMQ"] - 25))
    return np.stack([field[name] for name in CHANNELS], -1).astype(np.float32)


def background(random: np.random.Generator) -> list[Array]:
    """Zonal means of all channels, with noise of two scales."""
    lat, middle = LAT[:, None], np.abs(LAT[:, None])
    means = (
        6 + 40 * np.exp(-((lat / 24) ** 2)),
        0.002 + 0.014 * np.exp(-((lat / 28) ** 2)),
        -7 * np.exp(-((lat / 16) ** 2)) + 9 * np.exp(-(((middle - 45) / 14) ** 2)),
        0 * lat,
        101300 + 700 * np.exp(-(((middle - 32) / 12) ** 2)) - 1500 * np.exp(-(((middle - 63) / 13) ** 2)),
        268 - 28 * np.sin(np.radians(lat)) ** 2,
        219 - 5 * np.cos(np.radians(2 * lat)),
        4e-8 * (0.3 + np.exp(-((lat / 10) ** 2))),
    )
    spreads = (0.15 * means[0], 0.1 * means[1], 3, 3, 500, 2, 2, 0.1 * means[7])
    return [mean + spread * noise(random) for mean, spread in zip(means, spreads, strict=True)]


def noise(random: np.random.Generator) -> Array:
    """Gaussian noise of unit variance, smooth over some 1200 and 400 km; around the globe in longitude."""
    parts = []
    for cells in (6.0, 2.0):
        smooth = gaussian_filter(random.normal(size=(ROWS, COLUMNS)), cells, mode=("reflect", "wrap"))
        parts.append(smooth * 2 * np.sqrt(np.pi) * cells)
    mixed: Array = 0.8 * parts[0] + 0.6 * parts[1]
    return mixed


def distance(lat: float, lon: float) -> Array:
    """Kilometres from every point of the grid to one point."""
    km: Array = EARTH_KM * np.arccos(np.clip(GRID @ unit(np.array(lat), np.array(lon)), -1, 1))
    return km


def holland(km: Array, deficit: float, radius: float, shape: float, coriolis: float) -> tuple[Array, Array]:
    """Pressure below that of the surroundings (Pa) and gradient wind (m/s) at a distance from the centre.

    Holland 1980, equations 4 and 5. ``deficit`` in Pa, ``radius`` of the strongest wind in km, ``coriolis`` = |f|.
    """
    scaled = (radius / np.maximum(km, 1.0)) ** shape
    turn = km * 1000 * coriolis / 2
    wind = np.sqrt(shape * deficit / DENSITY * scaled * np.exp(-scaled) + turn**2) - turn
    return deficit * (1 - np.exp(-scaled)), wind


def cyclone(field: dict[str, Array], lat: float, lon: float, deficit: float, radius: float, shape: float) -> Array:
    """Add pressure and wind of a vortex; the distance of every point from its centre, in km."""
    centre = unit(np.array(lat), np.array(lon))
    km = distance(lat, lon)
    depth, wind = holland(km, deficit, radius, shape, abs(2 * ROTATION * np.sin(np.radians(lat))))
    around = np.sign(lat) * np.cross(centre, GRID)
    around /= np.maximum(np.linalg.norm(around, axis=-1, keepdims=True), 1e-9)
    field["PSL"] -= depth
    field["U850"] += wind * (around * EAST).sum(-1)
    field["V850"] += wind * (around * NORTH).sum(-1)
    return km


def river(field: dict[str, Array], random: np.random.Generator) -> None:
    """Add a curved filament of moist wind from 20 to 50 degrees."""
    along = np.linspace(0, 1, 60)
    bend, side = random.uniform(-10, 10), random.choice((-1, 1))
    lon = random.uniform(0, 360) + random.uniform(25, 60) * along + bend * np.sin(np.pi * along)
    line = unit(side * (20 + 30 * along), lon)
    cosine = GRID @ line.T
    nearest = cosine.argmax(-1)
    km = EARTH_KM * np.arccos(np.clip(cosine.max(-1), -1, 1))
    part = np.exp(-((km / random.uniform(250, 420)) ** 2))
    tangent = np.gradient(line, axis=0)[nearest]
    tangent /= np.linalg.norm(tangent, axis=-1, keepdims=True)
    wind = random.uniform(8, 20) * part
    field["U850"] += wind * (tangent * EAST).sum(-1)
    field["V850"] += wind * (tangent * NORTH).sum(-1)
    moist(field, random.uniform(10, 22) * part)


def moist(field: dict[str, Array], added: Array) -> None:
    """Add water vapour, in kg/m², and humidity near the ground in proportion."""
    field["TMQ"] += added
    field["QREFHT"] += 2.5e-4 * added
