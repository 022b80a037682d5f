"""Weather of a made-up climate, and where cyclones and atmospheric rivers are in it, by the published heuristics.

    fields = weather(np.random.default_rng(3))          # (96, 144, 8) float32, channels as CHANNELS, SI units
    labels = label(fields)                              # (96, 144) int64: BACKGROUND, CYCLONE or RIVER

Cyclones are made by Holland 1980 (Monthly Weather Review 108, 1212), and found by the criteria of TECA's candidates
(Prabhat et al. 2012, Procedia Computer Science 9, 866), coarser as the grid is. Rivers are found as ClimDeepLearn makes
the masks of Kurth et al. 2018 (arXiv:1810.01993, section III-A2), but above one threshold: there each picture has a
percentile of its own, which no local model can know.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import find_objects, gaussian_filter, maximum_filter, minimum_filter, uniform_filter
from scipy.ndimage import label as components

Array = npt.NDArray[Any]


def unit(lat: Array | float, lon: Array | float) -> Array:
    """Points on the unit sphere, (..., 3); degrees."""
    lat, lon = np.radians(lat), np.radians(lon)
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat) + 0 * lon], -1)


CHANNELS = ("TMQ", "QREFHT", "U850", "V850", "PSL", "T500", "T200", "PRECT")
"""Water vapour (kg/m²), humidity (kg/kg), winds (m/s), sea-level pressure (Pa), temperatures (K), rain (m/s)."""
CLASSES = ("background", "tropical cyclone", "atmospheric river")
BACKGROUND, CYCLONE, RIVER = range(3)
ROWS, COLUMNS = 96, 144
LAT, LON = (np.arange(ROWS) + 0.5) * 180 / ROWS - 90, np.arange(COLUMNS) * 360 / COLUMNS
EARTH_KM, ROTATION, DENSITY = 6371.0, 7.292e-5, 1.15
"""Radius in km, angular velocity in 1/s, density of air near the sea in kg/m³."""
GRID = unit(*np.meshgrid(LAT, LON, indexing="ij"))
EAST = unit(0 * LON, LON + 90)
NORTH = np.cross(GRID, EAST)
CELL_KM, WRAP = np.pi * EARTH_KM / ROWS, ("nearest", "wrap")
TRANSPORT = 0.09410868636760533
"""The 98th percentile of ``transport`` over states of this climate, in m/s."""


def weather(random: np.random.Generator, strength: float = 1.0) -> Array:
    """One state, rows from south to north. ``strength`` multiplies Δp and the warm core of the tropical cyclones."""
    field = background(random)
    dry = field["TMQ"].copy()
    for _ in range(random.poisson(2.5)):  # tropical cyclones
        place = random.choice((-1, 1)) * random.uniform(10, 30), random.uniform(0, 360)
        deficit = strength * random.uniform(800, 4000)
        km = cyclone(field, *place, deficit, radius=random.uniform(170, 320), shape=random.uniform(1.5, 2.2))
        core = deficit / 1000 * np.exp(-((km / 350) ** 2))
        field["T500"] += 1.2 * core
        field["T200"] += 1.6 * core
        field["TMQ"] += 12 * np.exp(-((km / 550) ** 2))
    for _ in range(random.poisson(3)):  # lows of middle latitudes: gales around a cold core
        place = random.choice((-1, 1)) * random.uniform(38, 60), random.uniform(0, 360)
        deficit = random.uniform(1500, 3500)
        km = cyclone(field, *place, deficit, radius=random.uniform(350, 600), shape=random.uniform(1.2, 1.6))
        field["T500"] -= deficit / 1000 * np.exp(-((km / 700) ** 2))
    for _ in range(random.poisson(3)):  # surges of the trade winds: gales that turn around nothing
        km = distance(random.choice((-1, 1)) * random.uniform(8, 30), random.uniform(0, 360))
        field["U850"] -= random.uniform(10, 20) * np.exp(-((km / random.uniform(400, 700)) ** 2))
    for _ in range(random.integers(2, 6)):
        river(field, random)
    field["QREFHT"] += 2.5e-4 * (field["TMQ"] - dry)
    field["PRECT"] *= np.exp(0.06 * (field["TMQ"] - 25))
    return np.stack([field[name] for name in CHANNELS], -1).astype(np.float32)


def background(random: np.random.Generator) -> dict[str, Array]:
    """Zonal means of all channels, and Gaussian noise, smooth over some 1200 and 400 km."""

    def noise(cells: float) -> Array:
        smooth = gaussian_filter(random.normal(size=(ROWS, COLUMNS)), cells, mode=("reflect", "wrap"))
        return np.asarray(smooth * 2 * np.sqrt(np.pi) * cells)

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
    spreads: tuple[Any, ...] = (0.15 * means[0], 0.1 * means[1], 3, 3, 500, 2, 2, 0.1 * means[7])
    named = zip(CHANNELS, means, spreads, strict=True)
    return {name: mean + spread * (0.8 * noise(6.0) + 0.6 * noise(2.0)) for name, mean, spread in named}


def distance(lat: float, lon: float) -> Array:
    """Kilometres from every point of the grid to one point."""
    return np.asarray(EARTH_KM * np.arccos(np.clip(GRID @ unit(lat, lon), -1, 1)))


def holland(km: Array, deficit: float, radius: float, shape: float, coriolis: float) -> tuple[Array, Array]:
    """Pressure Δp·(1 - exp(-(R/r)^B)) below the surroundings, in Pa, and the wind in balance with it, in m/s.

    V²/r + fV = (1/ρ) dp/dr: Holland 1980, equations 4 and 5. ``deficit`` in Pa, ``radius`` of the strongest wind in km.
    """
    scaled = (radius / np.maximum(km, 1.0)) ** shape
    turn = km * 1000 * coriolis / 2
    wind = np.sqrt(shape * deficit / DENSITY * scaled * np.exp(-scaled) + turn**2) - turn
    return deficit * (1 - np.exp(-scaled)), wind


def cyclone(field: dict[str, Array], lat: float, lon: float, deficit: float, radius: float, shape: float) -> Array:
    """Add pressure and wind of a vortex; the distance of every point from its centre, in km."""
    km = distance(lat, lon)
    depth, wind = holland(km, deficit, radius, shape, abs(2 * ROTATION * np.sin(np.radians(lat))))
    field["PSL"] -= depth
    blow(field, wind, np.sign(lat) * np.cross(unit(lat, lon), GRID))
    return km


def river(field: dict[str, Array], random: np.random.Generator) -> None:
    """Add a curved filament of moist wind from 20 to 50 degrees."""
    along = np.linspace(0, 1, 60)
    bend, side = random.uniform(-10, 10), random.choice((-1, 1))
    lon = random.uniform(0, 360) + random.uniform(25, 60) * along + bend * np.sin(np.pi * along)
    line = unit(side * (20 + 30 * along), lon)
    cosine = GRID @ line.T
    part = np.exp(-((EARTH_KM * np.arccos(np.clip(cosine.max(-1), -1, 1)) / random.uniform(250, 420)) ** 2))
    tangent = np.gradient(line, axis=0)[cosine.argmax(-1)]
    blow(field, random.uniform(8, 20) * part, tangent)
    field["TMQ"] += random.uniform(10, 22) * part


def blow(field: dict[str, Array], speed: Array, towards: Array) -> None:
    """Add a wind in m/s along vectors of any length that are tangent to the sphere, (rows, columns, 3)."""
    towards = towards / np.maximum(np.linalg.norm(towards, axis=-1, keepdims=True), 1e-9)
    field["U850"] += speed * (towards * EAST).sum(-1)
    field["V850"] += speed * (towards * NORTH).sum(-1)


def label(fields: Array) -> Array:
    """The class of every pixel of a state, int64."""
    return np.where(cyclones(fields), CYCLONE, RIVER * rivers(transport(fields) > TRANSPORT))


def vorticity(u: Array, v: Array, lat: Array = LAT) -> Array:
    """Relative vorticity in 1/s of winds in m/s on (latitude, longitude), all around the globe; central differences."""
    cosine = np.cos(np.radians(lat))[:, None]
    across = (np.roll(v, -1, 1) - np.roll(v, 1, 1)) * u.shape[1] / (4 * np.pi)
    along = np.gradient(u * cosine, np.radians(lat), axis=0)
    return np.asarray((across - along) / (EARTH_KM * 1000 * np.maximum(cosine, 1e-3)))


def cyclones(fields: Array) -> Array:
    """True where gales of 15 m/s blow in the box of 7 x 7 around a warm low (2 K, 400 Pa) that turns (2.5e-5/s)."""
    u, v, pressure, t500, t200 = (fields[..., CHANNELS.index(name)] for name in CHANNELS[2:7])
    turning = maximum_filter(vorticity(u, v) * np.sign(LAT)[:, None], 3, mode=WRAP)
    deep = uniform_filter(pressure, 7, mode=WRAP) - pressure
    warm = uniform_filter(t500 + t200, 3, mode=WRAP) - uniform_filter(t500 + t200, 9, mode=WRAP)
    is_centre = (pressure == minimum_filter(pressure, 5, mode=WRAP)) & (np.abs(LAT) < 45)[:, None]
    is_centre &= (turning > 2.5e-5) & (deep > 400) & (warm > 2)
    return np.asarray(maximum_filter(is_centre, 7, mode=WRAP) & (np.hypot(u, v) > 15))


def transport(fields: Array) -> Array:
    """Moisture transport |(U850, V850)| x QREFHT, damped by 1 - exp(-φ²/2·10²) near the equator."""
    q, u, v = (fields[..., CHANNELS.index(name)] for name in ("QREFHT", "U850", "V850"))
    return np.asarray(np.hypot(u, v) * q * (1 - np.exp(-(LAT[:, None] ** 2) / 200)))


def rivers(moist: Array) -> Array:
    """The components that are longer than 1500 km and thinner than 1000 km (their area over their length)."""
    around, _ = components(np.tile(moist, 2))  # twice around the globe
    found = np.zeros(around.shape, bool)
    area = 2 * ROWS / COLUMNS * CELL_KM**2 * np.cos(np.radians(LAT))[:, None]
    for number, box in enumerate(find_objects(around), 1):
        if box[1].start == 0 or box[1].stop == 2 * COLUMNS:
            continue  # cut off there, and whole on the other side
        inside = around[box] == number
        tall, wide = inside.shape
        length = CELL_KM * np.hypot(tall, wide * 2 * ROWS / COLUMNS * np.cos(np.radians(LAT[box[0]].mean())))
        if length > 1500 and (inside * area[box[0]]).sum() / length < 1000:
            found[box] |= inside
    return found[:, :COLUMNS] | found[:, COLUMNS:]
