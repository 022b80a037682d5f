"""``python -m workbench.attacks``: see the package."""

from workbench.attacks.command import main

main()
