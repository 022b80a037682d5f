"""``python -m workbench.survival``: see the package."""

from workbench.survival.command import main

main()
