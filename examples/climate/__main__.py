"""Make the table and the picture: ``python -m examples.climate --reproduce``."""

from examples.climate.experiment import FIGURES, findings, measure
from examples.climate.picture import draw
from examples.common.reproduce import Application

if __name__ == "__main__":
    Application("climate", FIGURES, measure, findings, draw).main()
