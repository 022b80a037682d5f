"""Reproduce the table and the picture of CosmoFlow: ``python -m examples.cosmoflow --reproduce``."""

from examples.common.reproduce import Application
from examples.cosmoflow.experiment import FIGURES, findings, measure
from examples.cosmoflow.picture import draw

if __name__ == "__main__":
    Application("cosmoflow", FIGURES, measure, findings, draw).main()
