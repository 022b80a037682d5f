"""``python -m workbench.differential``: see the package."""

import sys

from workbench.differential.command import main

sys.exit(main())
