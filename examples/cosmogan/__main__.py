"""Reproduce the table and the figure of CosmoGAN: ``python -m examples.cosmogan --reproduce``."""

from examples.common.reproduce import Application
from examples.cosmogan.experiment import FIGURES, findings, measure
from examples.cosmogan.picture import draw

if __name__ == "__main__":
    Application("cosmogan", FIGURES, measure, findings, draw).main()
