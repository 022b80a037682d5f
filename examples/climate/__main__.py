"""Make the table and the picture: ``python -m examples.climate --reproduce``."""

from examples.climate.experiment import FIGURES, draw, findings, measure
from examples.common.reproduce import Application

if __name__ == "__main__":
    Application("climate", FIGURES, measure, findings, draw).main()
