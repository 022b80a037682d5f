"""Make the table and the picture: ``python -m examples.jets --reproduce``."""

from examples.common.reproduce import Application
from examples.jets.experiment import FIGURES, findings, measure
from examples.jets.picture import draw

if __name__ == "__main__":
    Application("jets", FIGURES, measure, findings, draw).main()
