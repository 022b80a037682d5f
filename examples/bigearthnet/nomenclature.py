"""What the labels of BigEarthNet are called: 43 classes of CORINE level 3, or the 19 that replace them.

    CLASSES[19][0]                                                # 'Urban fabric'
    classes_of(["Port areas", "Peatbogs"], 19)                    # ['Inland wetlands']

The 19 classes, and what becomes of each of the 43, are those of table 1 of Sumbul et al. 2021 (arXiv 2105.07921).
Eleven of the 43 have no successor, as they cannot be told from a single image.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

AGRICULTURE = "Land principally occupied by agriculture, with significant areas of natural vegetation"

SUCCESSOR: dict[str, str | None] = {
    "Continuous urban fabric": "Urban fabric",
    "Discontinuous urban fabric": "Urban fabric",
    "Industrial or commercial units": "Industrial or commercial units",
    "Road and rail networks and associated land": None,
    "Port areas": None,
    "Airports": None,
    "Mineral extraction sites": None,
    "Dump sites": None,
    "Construction sites": None,
    "Green urban areas": None,
    "Sport and leisure facilities": None,
    "Non-irrigated arable land": "Arable land",
    "Permanently irrigated land": "Arable land",
    "Rice fields": "Arable land",
    "Vineyards": "Permanent crops",
    "Fruit trees and berry plantations": "Permanent crops",
    "Olive groves": "Permanent crops",
    "Pastures": "Pastures",
    "Annual crops associated with permanent crops": "Permanent crops",
    "Complex cultivation patterns": "Complex cultivation patterns",
    AGRICULTURE: AGRICULTURE,
    "Agro-forestry areas": "Agro-forestry areas",
    "Broad-leaved forest": "Broad-leaved forest",
    "Coniferous forest": "Coniferous forest",
    "Mixed forest": "Mixed forest",
    "Natural grassland": "Natural grassland and sparsely vegetated areas",
    "Moors and heathland": "Moors, heathland and sclerophyllous vegetation",
    "Sclerophyllous vegetation": "Moors, heathland and sclerophyllous vegetation",
    "Transitional woodland/shrub": "Transitional woodland, shrub",
    "Beaches, dunes, sands": "Beaches, dunes, sands",
    "Bare rock": None,
    "Sparsely vegetated areas": "Natural grassland and sparsely vegetated areas",
    "Burnt areas": None,
    "Inland marshes": "Inland wetlands",
    "Peatbogs": "Inland wetlands",
    "Salt marshes": "Coastal wetlands",
    "Salines": "Coastal wetlands",
    "Intertidal flats": None,
    "Water courses": "Inland waters",
    "Water bodies": "Inland waters",
    "Coastal lagoons": "Marine waters",
    "Estuaries": "Marine waters",
    "Sea and ocean": "Marine waters",
}
"""Each of the 43 classes, in CORINE's order, to one of the 19, or to nothing."""

_ORDER_OF_19 = (
    "Urban fabric",
    "Industrial or commercial units",
    "Arable land",
    "Permanent crops",
    "Pastures",
    "Complex cultivation patterns",
    AGRICULTURE,
    "Agro-forestry areas",
    "Broad-leaved forest",
    "Coniferous forest",
    "Mixed forest",
    "Natural grassland and sparsely vegetated areas",
    "Moors, heathland and sclerophyllous vegetation",
    "Transitional woodland, shrub",
    "Beaches, dunes, sands",
    "Inland wetlands",
    "Coastal wetlands",
    "Inland waters",
    "Marine waters",
)

CLASSES: dict[int, tuple[str, ...]] = {19: _ORDER_OF_19, 43: tuple(SUCCESSOR)}
"""The classes of either nomenclature, in the order of the columns of the labels."""


def classes_of(labels: Iterable[str], nomenclature: int) -> list[str]:
    """The classes, in their order, that labels of the 43-class nomenclature have in this one; perhaps none.

    Raises ``ValueError`` for a nomenclature that is neither 19 nor 43, and for a label that is none of the 43.
    """
    if nomenclature not in CLASSES:
        raise ValueError(f"nomenclature={nomenclature}: BigEarthNet has two, 19 and 43")
    found = set()
    for label in labels:
        if label not in SUCCESSOR:
            close = difflib.get_close_matches(label, SUCCESSOR, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f", such as {next(iter(SUCCESSOR))!r}"
            raise ValueError(f"{label!r} is none of the 43 classes of CORINE level 3 that BigEarthNet knows{hint}")
        found.add(label if nomenclature == 43 else SUCCESSOR[label])
    return [name for name in CLASSES[nomenclature] if name in found]
