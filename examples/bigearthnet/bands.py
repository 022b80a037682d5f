"""The twelve bands of a Sentinel-2 surface product, in the order of the channels of every image here.

>>> METRES["B8A"], BANDS.index("B8A")
(20, 8)
"""

from __future__ import annotations

METRES = {
    "B01": 60,
    "B02": 10,
    "B03": 10,
    "B04": 10,
    "B05": 20,
    "B06": 20,
    "B07": 20,
    "B08": 10,
    "B8A": 20,
    "B09": 60,
    "B11": 20,
    "B12": 20,
}
"""Ground resolution by band, by increasing wavelength. Surface products have no B10, which sees only cirrus."""

BANDS = tuple(METRES)
"""Their names."""
