"""``python -m farandole.testing.differential``: see the package."""

import sys

from farandole.testing.differential.command import main

sys.exit(main())
