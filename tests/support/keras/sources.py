"""Where the scripts of these tests lie."""

from tests.support.paths import ROOT, SUPPORT

FOLDER = SUPPORT / "keras"
__all__ = ["FOLDER", "ROOT"]
