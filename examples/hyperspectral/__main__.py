"""Reproduce the table and the picture: ``python -m examples.hyperspectral --reproduce``."""

from examples.common.reproduce import Application
from examples.hyperspectral.experiment import FIGURES, findings, measure
from examples.hyperspectral.picture import draw

if __name__ == "__main__":
    Application("hyperspectral", FIGURES, measure, findings, draw).main()
