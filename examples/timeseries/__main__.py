"""Reproduce the table and the figure of error against horizon: ``python -m examples.timeseries --reproduce``."""

from __future__ import annotations

from examples.common.reproduce import Application
from examples.timeseries.data import WITHOUT_BUOY, has_buoy
from examples.timeseries.experiment import figures, findings, measure
from examples.timeseries.picture import draw

if __name__ == "__main__":
    if not has_buoy():
        print(WITHOUT_BUOY)
    Application("timeseries", figures(), measure, findings, draw).main()
