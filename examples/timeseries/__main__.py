"""Reproduce the table and the figure of error against horizon: ``python -m examples.timeseries --reproduce``."""

from examples.common.reproduce import Application
from examples.timeseries.experiment import FIGURES, findings, measure
from examples.timeseries.picture import draw

if __name__ == "__main__":
    Application("timeseries", FIGURES, measure, findings, draw).main()
