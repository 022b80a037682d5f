"""``python -m farandole.testing.survival``: see the package."""

from farandole.testing.survival.command import main

main()
