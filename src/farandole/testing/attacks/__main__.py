"""``python -m farandole.testing.attacks``: see the package."""

from farandole.testing.attacks.command import main

main()
