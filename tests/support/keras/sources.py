"""Where the scripts of these tests lie."""

from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
