"""Where cyclones and atmospheric rivers are, by the published heuristics with thresholds that are fixed.

    labels = label(fields)                      # (96, 144) int64: BACKGROUND, CYCLONE or RIVER

Cyclones: the criteria of TECA's candidates (vorticity, sea-level pressure, warm core; Prabhat et al. 2012, Procedia
Computer Science 9, 866), coarser as the grid is; then the gales at 850 hPa around each. Rivers: moisture transport,
damped near the equator, above a percentile, long and thin, as ClimDeepLearn makes the masks of Kurth et al. 2018
(arXiv:1810.01993, section III-A2). There each picture has a percentile of its own, which no local model can know.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.ndimage import find_objects, maximum_filter, minimum_filter, uniform_filter
from scipy.ndimage import label as components

from examples.climate.fields import CHANNELS, COLUMNS, EARTH_KM, LAT, ROWS, Array, weather

BACKGROUND, CYCLONE, RIVER = 0, 1, 2
CLASSES = ("background", "tropical cyclone", "atmospheric river")
VORTICITY, DEEPER, WARMER, GALE = 2.5e-5, 400.0, 2.0, 15.0
"""1/s; Pa and K against the surroundings; m/s."""
PERCENTILE, LONG_KM, THIN_KM = 98, 1500.0, 1000.0
WRAP = ("nearest", "wrap")
CELL_KM = np.pi * EARTH_KM / ROWS


def label(fields: Array) -> Array:
    """The class of every pixel of a state with the channels of ``fields.py``."""
    found = np.where(rivers(transport(fields) > threshold()), RIVER, BACKGROUND)
    found[cyclones(fields)] = CYCLONE
    return found.astype(np.int64)


def vorticity(u: Array, v: Array, lat: Array = LAT) -> Array:
    """Relative vorticity in 1/s of winds in m/s on (latitude, longitude), all around the globe; central differences."""
    cosine = np.cos(np.radians(lat))[:, None]
    step = 2 * np.pi / u.shape[1]
    across = (np.roll(v, -1, 1) - np.roll(v, 1, 1)) / (2 * step)
    along = np.gradient(u * cosine, np.radians(lat), axis=0)
    turning: Array = (across - along) / (EARTH_KM * 1000 * np.maximum(cosine, 1e-3))
    return turning


def cyclones(fields: Array) -> Array:
    """True where gales blow in the box of 7 x 7 around a warm low that turns."""
    u, v, pressure, t500, t200 = (fields[..., CHANNELS.index(name)] for name in CHANNELS[2:7])
    turning = maximum_filter(vorticity(u, v) * np.sign(LAT)[:, None], 3, mode=WRAP)
    deep = uniform_filter(pressure, 7, mode=WRAP) - pressure
    warm = uniform_filter(t500 + t200, 3, mode=WRAP) - uniform_filter(t500 + t200, 9, mode=WRAP)
    is_centre = (pressure == minimum_filter(pressure, 5, mode=WRAP)) & (np.abs(LAT) < 45)[:, None]
    is_centre &= (turning > VORTICITY) & (deep > DEEPER) & (warm > WARMER)
    found: Array = maximum_filter(is_centre, 7, mode=WRAP) & (np.hypot(u, v) > GALE)
    return found


def transport(fields: Array) -> Array:
    """Moisture transport |(U850, V850)| x QREFHT, damped by 1 - exp(-φ²/2·10²) near the equator."""
    q, u, v = (fields[..., CHANNELS.index(name)] for name in ("QREFHT", "U850", "V850"))
    damped: Array = np.hypot(u, v) * q * (1 - np.exp(-(LAT[:, None] ** 2) / 200))
    return damped


@cache
def threshold() -> float:
    """The percentile of moisture transport over 20 states of the climate: the same for every data set."""
    states = [transport(weather(np.random.default_rng([2018, number]))) for number in range(20)]
    return float(np.percentile(np.stack(states), PERCENTILE))


def rivers(moist: Array) -> Array:
    """The components that are longer than 1500 km and thinner than 1000 km (their area over their length)."""
    around, _ = components(np.concatenate([moist, moist], 1))  # twice around the globe
    found = np.zeros((ROWS, 2 * COLUMNS), bool)
    area = 2 * ROWS / COLUMNS * CELL_KM**2 * np.cos(np.radians(LAT))[:, None]
    for number, box in enumerate(find_objects(around), 1):
        if box[1].start == 0 or box[1].stop == 2 * COLUMNS:
            continue  # cut off there, and whole on the other side
        inside = around[box] == number
        tall, wide = (part.stop - part.start for part in box)
        length = CELL_KM * np.hypot(tall, wide * 2 * ROWS / COLUMNS * np.cos(np.radians(LAT[box[0]].mean())))
        if length > LONG_KM and (inside * area[box[0]]).sum() / length < THIN_KM:
            found[box] |= inside
    return found[:, :COLUMNS] | found[:, COLUMNS:]
