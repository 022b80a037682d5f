"""Trained models on whole data sets, with their uncertainty: each sample once, even if workers join, leave or die.

from farandole.inference import classification, ensemble, predict

found = predict(classification(ensemble([first, second, third])), source, "out.zarr", workers=8)
found["mean"], found["epistemic"]
"""

from farandole.inference.calibration import (
    Reliability,
    coverage,
    expected_calibration_error,
    normal_interval,
    reliability,
)
from farandole.inference.draws import Draw
from farandole.inference.passes import ensemble, monte_carlo
from farandole.inference.picture import draw_calibration
from farandole.inference.plan import BlockPlan
from farandole.inference.predict import Predictions, opened, predict
from farandole.inference.records import Answer
from farandole.inference.uncertainty import (
    classification,
    entropy,
    entropy_parts,
    regression,
    variance_parts,
)

__all__ = [
    "Answer",
    "BlockPlan",
    "Draw",
    "Predictions",
    "Reliability",
    "classification",
    "coverage",
    "draw_calibration",
    "ensemble",
    "entropy",
    "entropy_parts",
    "expected_calibration_error",
    "monte_carlo",
    "normal_interval",
    "opened",
    "predict",
    "regression",
    "reliability",
    "variance_parts",
]
